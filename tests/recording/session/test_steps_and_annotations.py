"""Steps and annotated spans of a user's program."""

from __future__ import annotations

import asyncio
import inspect
import sys
import threading
from collections.abc import AsyncGenerator, Generator
from operator import itemgetter
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

import dsprof
from tests.recording.session.fake_group import communicate, read

SECRET = "hf_" + "aB3" * 10


def test_steps_annotations_and_phases_of_the_user(tmp_path: Path) -> None:
    dsprof.enable(out=str(tmp_path))
    for _ in range(3):
        communicate()
        with dsprof.annotate("data"):
            pass
        dsprof.step()
    dsprof.disable()
    trace = read(tmp_path)
    assert [(step.step, step.source) for step in trace.steps] == [(n, "user") for n in range(3)]
    assert [span.name for span in trace.spans if span.is_annotation] == ["data"] * 3


def test_of_a_name_as_long_as_a_text_the_begin_is_written(tmp_path: Path) -> None:
    dsprof.enable(out=str(tmp_path))
    group = dist.new_group([0, 1], group_desc=f"group {SECRET} " + "g" * 200_000)
    dist.all_reduce(torch.ones(1), group=group)
    with dsprof.annotate(f"prompt {SECRET} " + "p" * 200_000):
        pass
    dsprof.step()
    dsprof.disable()
    trace = read(tmp_path)
    labels = [one.label for one in trace.groups.values()]
    spans = [span.name for span in trace.spans if span.is_annotation]
    assert [name[:20] for name in labels] == ["group <redacted> ggg"]
    assert [name[:20] for name in spans] == ["prompt <redacted> pp"]
    assert max(map(len, labels + spans)) == 200


def spans_of(folder: Path) -> list[tuple[str, int, int]]:
    """Return the annotated spans, by their begin."""
    spans = [span for span in read(folder).spans if span.is_annotation]
    return sorted(((span.name, span.start_ns, span.end_ns) for span in spans), key=itemgetter(1))


def test_an_annotation_is_used_again_inside_itself_and_in_another_thread(tmp_path: Path) -> None:
    dsprof.enable(out=str(tmp_path))
    communicate()
    span = dsprof.annotate("data")

    def nested() -> None:
        with span, span:
            pass

    nested()
    with span:
        other = threading.Thread(target=nested)
        other.start()
        other.join()
    dsprof.disable()
    with span:
        pass
    first, inner, around, *others = spans_of(tmp_path)
    assert first[2] >= inner[2]
    assert len(others) == 2
    assert all(around[2] > end_ns for _, _, end_ns in others)


def test_an_annotation_that_another_thread_leaves_does_no_harm(tmp_path: Path) -> None:
    dsprof.enable(out=str(tmp_path))
    communicate()
    span = dsprof.annotate("data")
    span.__enter__()
    errors: list[BaseException] = []

    def leave() -> None:
        try:
            span.__exit__(None, None, None)
        except BaseException as error:
            errors.append(error)

    other = threading.Thread(target=leave)
    other.start()
    other.join()
    assert errors == []
    span.__exit__(None, None, None)
    dsprof.disable()
    assert len(spans_of(tmp_path)) == 1


def test_decorated_coroutines_and_generators_are_timed_while_they_run(tmp_path: Path) -> None:
    dsprof.enable(out=str(tmp_path))
    communicate()

    async def wait() -> None:
        with dsprof.annotate("inside"):
            await asyncio.sleep(0)

    @dsprof.annotate("coroutine")
    async def load() -> str:
        await wait()
        return "loaded"

    @dsprof.annotate("generator")
    def batches() -> Generator[int, str, str]:
        with dsprof.annotate("inside"):
            pass
        try:
            answer = yield 1
        except KeyError:
            answer = yield 2
        return answer

    @dsprof.annotate("asynchronous generator")
    async def both() -> AsyncGenerator[int, None]:
        yield 1

    assert asyncio.run(load()) == "loaded"
    source = batches()
    assert next(source) == 1
    with dsprof.annotate("outside"):
        pass
    assert source.throw(KeyError()) == 2
    with pytest.raises(StopIteration) as ended:
        source.send("answer")
    assert ended.value.value == "answer"
    assert inspect.isasyncgenfunction(both)
    batches().close()
    dsprof.disable()
    spans = spans_of(tmp_path)
    names = [name for name, *_ in spans]
    runs = ["generator", "inside", "outside", "generator", "generator"]
    assert names == ["coroutine", "inside", *runs]
    assert all(outer[2] >= inner[2] for outer, inner in (spans[:2], spans[2:4]))


def test_steps_without_collectives_count_once_a_group_is_up(tmp_path: Path) -> None:
    dist.destroy_process_group()
    dsprof.enable(out=str(tmp_path))
    dsprof.step()
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    for _ in range(3):
        dsprof.step()  # the first one begins the recording
    dsprof.disable()
    assert [step.source for step in read(tmp_path).steps] == ["user", "user"]


def test_steps_before_torch_is_loaded_are_no_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    dist.destroy_process_group()
    dsprof.enable(out=str(tmp_path))
    with monkeypatch.context() as without:
        without.delitem(sys.modules, "torch.distributed")
        dsprof.step()
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    communicate()
    dsprof.disable()
    assert "nothing was recorded" not in capfd.readouterr().err
    assert len(read(tmp_path).collectives) == 1


def test_without_a_session_step_and_annotate_do_nothing() -> None:
    dsprof.step()
    with dsprof.annotate("data"):
        pass
    dsprof.disable()


def test_optimizer_steps_count_where_nothing_else_does(tmp_path: Path) -> None:
    dsprof.enable(out=str(tmp_path))
    weight = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    communicate()
    for _ in range(2):
        weight.grad = torch.ones(2)
        optimizer.step()
    dsprof.disable()
    assert [step.source for step in read(tmp_path).steps] == ["optimizer", "optimizer"]
    optimizer.step()
