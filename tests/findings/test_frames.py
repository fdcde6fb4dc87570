"""Which calls of a stack are shown."""

from __future__ import annotations

from dsprof.findings.frames import frame_of_user, shortened, shown_frames

_TORCH = "/venv/lib/python3.11/site-packages/torch/distributed"


def test_calls_within_libraries_are_counted_but_for_the_innermost() -> None:
    stack = [
        "/venv/lib/python3.11/site-packages/dsprof/hooks/wire/work.py:56 wait",
        f"{_TORCH}/distributed_c10d.py:4394 all_gather_single",
        f"{_TORCH}/c10d_logger.py:83 wrapper",
        f"{_TORCH}/fsdp/_fully_shard/_fsdp_collectives.py:364 foreach_all_gather",
        "/home/me/train.py:79 forward",
        f"{_TORCH}/../nn/modules/module.py:1 _call_impl",
        f"{_TORCH}/../nn/modules/module.py:2 _wrapped_call_impl",
        "/home/me/train.py:12 main",
    ]
    assert shown_frames(stack, 16) == [
        *stack[1:3],
        "(1 call in torch)",
        stack[4],
        "(2 calls in torch)",
        stack[7],
    ]


def test_what_is_left_of_a_long_stack_is_counted() -> None:
    stack = [f"/home/me/train.py:{line} f" for line in range(5)]
    assert shown_frames(stack, 3) == [*stack[:3], "and 2 more frames"]


def test_where_python_itself_waits_is_shown() -> None:
    stack = ["/usr/lib/python3.11/threading.py:327 wait", "/usr/lib/python3.11/queue.py:171 get"]
    assert shown_frames([*stack, "/home/me/train.py:4 train"], 8)[:2] == stack


def test_the_line_to_look_at_is_the_users() -> None:
    stack = ["/usr/lib/python3.11/threading.py:327 wait", "/home/me/train.py:4 train"]
    assert frame_of_user(stack) == stack[1]
    assert frame_of_user(stack[:1]) == stack[0]


def test_of_a_path_the_last_parts_are_shown() -> None:
    assert shortened("/home/me/layers/moe.py:40 forward") == "layers/moe.py:40 forward"
    assert shortened("train.py:4") == "train.py:4"
    assert shortened("") == ""
