"""The cheap interception gives way to the complete one when something communicates from C++.

Each case is a process of its own: what this one has imported would decide otherwise.
"""

from __future__ import annotations

import os
import textwrap

import pytest

from tests.forked import python

PROGRAM = """
import torch, torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore
import dsprof
from dsprof.recording import session
from dsprof.hooks.wire.layers import Layers
from tests.handed_over import handed_over

def start(tmp):
    dsprof.enable(out=tmp)

def in_dispatcher():
    return torch._C._dispatch_has_kernel_for_dispatch_key("c10d::allreduce_", "BackendSelect")

def seen():
    recorder = session.current().recorder
    records = [*handed_over(recorder), *recorder.in_flight.unfinished()]
    collectives = [record for record in records if hasattr(record, "seq")]
    return sorted((record.op, record.seq) for record in collectives)

def keep_records():
    # The writer would take them.
    from dsprof.trace.writing.writer import TraceWriter
    TraceWriter.start = lambda self: None
    TraceWriter.close = lambda *arguments: None

tensor = torch.ones(8)
keep_records()
"""

UP = 'dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)\n'


@pytest.fixture(autouse=True, params=["Python", pytest.param("C++", marks=pytest.mark.long)])
def language(
    request: pytest.FixtureRequest, tmp_path: object, monkeypatch: pytest.MonkeyPatch
) -> str:
    """What the kernels are written in: C++ where they are built, which make does for the tests."""
    if request.param == "Python":
        monkeypatch.setenv("TORCH_EXTENSIONS_DIR", os.path.join(str(tmp_path), "nothing built"))
    return str(request.param)


def run(body: str, out: object) -> str:
    program = PROGRAM + textwrap.dedent(body).replace("OUT", repr(str(out)))
    done = python(program)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_python_alone_stays_out_of_the_dispatcher(tmp_path: object) -> None:
    text = "start(OUT)\n" + UP + "dist.all_reduce(tensor)\nprint(seen(), in_dispatcher())"
    assert run(text, tmp_path) == "[('all_reduce', 1)] False\n"


def test_functional_collectives_are_seen_from_the_first_one_on(
    tmp_path: object, language: str
) -> None:
    body = """
        dist.all_reduce(tensor)
        import torch.distributed._functional_collectives as functional
        functional.wait_tensor(functional.all_reduce(tensor, "sum", dist.group.WORLD))
        dist.all_reduce(tensor)
        print(seen(), in_dispatcher())
        dsprof.disable()
        print(in_dispatcher())
    """
    text = "start(OUT)\n" + UP + textwrap.dedent(body)
    stay = language == "C++"  # and pass everything on
    expected = f"[('all_reduce', 1), ('all_reduce', 2), ('all_reduce', 3)] True\n{stay}\n"
    assert run(text, tmp_path) == expected


@pytest.mark.parametrize(
    "then", ["", "dist._broadcast_coalesced(dist.group.WORLD, [tensor], 64, 0)\n"]
)
def test_operators_that_may_be_called_without_the_process_group_are_named(
    then: str, tmp_path: object
) -> None:
    defined = """
    from dsprof.recording.recorder.outbox import Outbox
    define = Outbox.define
    def noted(self, record):
        print(getattr(record, "text", "")) if "c10d" in getattr(record, "text", "") else None
        define(self, record)
    Outbox.define = noted
    """
    begin = f"start(OUT)\n{UP}" + textwrap.dedent(defined)
    group = "dist.all_reduce(tensor)\n"
    listed = "torch.ops.c10d.scatter_\n"  # as tensors do that Python's scatter calls it for
    assert run(begin + group + listed + then + "dsprof.disable()", tmp_path) == ""
    direct = "torch.ops.c10d.barrier\n"  # a table of operators does no more
    text = run(begin + group + direct + then + "dsprof.disable()", tmp_path)
    assert text.count("the program refers to torch.ops.c10d: barrier: if it called") == 1


@pytest.mark.parametrize(
    "what",
    [
        "torch.optim.AdamW([torch.nn.Parameter(tensor)])",  # imports torch._dynamo and that FSDP
        "import torch.distributed._functional_collectives, torch.distributed.fsdp",
    ],
)
def test_what_is_only_imported_sends_nothing_into_the_dispatcher(
    what: str, tmp_path: object
) -> None:
    text = f"start(OUT)\n{UP}{what}\ndist.all_reduce(tensor)\nprint(seen(), in_dispatcher())"
    assert run(text, tmp_path) == "[('all_reduce', 1)] False\n"


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (
            "torch.ops._c10d_functional.all_reduce(tensor, 'sum', dist.group.WORLD.group_name)",
            "[('all_reduce', 1)] True",
        ),
        ("dist._broadcast_coalesced(dist.group.WORLD, [tensor], 64, 0)", "[('broadcast', 1)] True"),
        (
            "dist._verify_params_across_processes(dist.group.WORLD, [tensor], None)",
            "[('all_gather', 1), ('broadcast', 2)] True",
        ),
        (
            "torch.ops._dtensor.shard_dim_alltoall("
            "tensor.view(4, 2), 0, 1, dist.group.WORLD.group_name)",
            "[('all_to_all_single', 1)] True",
        ),
    ],
)
def test_the_first_collective_of_all_is_seen_though_cpp_issues_it(
    call: str, expected: str, tmp_path: object
) -> None:
    assert (
        run(f"start(OUT)\n{UP}{call}\nprint(seen(), in_dispatcher())", tmp_path) == f"{expected}\n"
    )


CONSTRUCT = """
from torch.nn.parallel import DistributedDataParallel
def hook(state, bucket):
    done = torch.futures.Future()
    done.set_result(bucket.buffer())
    return done
model = DistributedDataParallel(torch.nn.Linear(2, 2), init_sync=False)
model.register_comm_hook(None, hook)
"""


@pytest.mark.parametrize("late", [False, True])
def test_ddp_brings_the_dispatcher_in(late: bool, tmp_path: object) -> None:
    steps = [CONSTRUCT, "start(OUT)\n"] if late else ["start(OUT)\n", CONSTRUCT]
    text = UP + "".join(steps) + "print(in_dispatcher())"
    assert run(text, tmp_path) == "True\n"


def test_ddp_that_comes_out_of_a_pickle_brings_the_dispatcher_in(tmp_path: object) -> None:
    body = """
        import copy
        from torch.nn.parallel import DistributedDataParallel
        model = DistributedDataParallel(torch.nn.Linear(2, 2), init_sync=False)
        state = copy.copy(model.__getstate__())
        del model
        start(OUT)
        print(in_dispatcher())
        DistributedDataParallel.__new__(DistributedDataParallel).__setstate__(state)
        print(in_dispatcher())
    """
    assert run(UP + textwrap.dedent(body), tmp_path) == "False\nTrue\n"


def test_a_thread_waits_for_the_one_that_brings_the_dispatcher_in(tmp_path: object) -> None:
    """Without that it would communicate unseen meanwhile."""
    body = """
        import threading, time
        from dsprof.hooks.wire.dispatcher import DispatcherHook
        install, begun = DispatcherHook.install, threading.Event()
        def slow(hook, module):
            begun.set()
            time.sleep(0.2)
            install(hook, module)
        DispatcherHook.install = slow
        def reduce():
            torch.ops._c10d_functional.all_reduce(tensor, "sum", dist.group.WORLD.group_name)
        start(OUT)
        first = threading.Thread(target=reduce)
        first.start()
        begun.wait()
        reduce()
        first.join()
        print(seen())
    """
    expected = "[('all_reduce', 1), ('all_reduce', 2)]\n"
    assert run(UP + textwrap.dedent(body), tmp_path) == expected


def test_what_is_under_way_as_the_dispatcher_comes_in_is_recorded_once(tmp_path: object) -> None:
    body = """
        issue = dist.ProcessGroup.allreduce
        def allreduce(*args):
            if session.current():  # as another thread would
                session.current().recorder.shared(Layers).on_cpp()
            return issue(*args)
        dist.ProcessGroup.allreduce = allreduce
        start(OUT)
        for _ in range(2):
            dist.all_reduce(tensor)
        print(seen(), in_dispatcher())
    """
    expected = "[('all_reduce', 1), ('all_reduce', 2)] True\n"
    assert run(UP + textwrap.dedent(body), tmp_path) == expected


def test_functional_collectives_are_seen_where_another_tool_holds_one_of_them(
    tmp_path: object,
) -> None:
    body = """
        library = torch.library.Library("_c10d_functional", "IMPL")
        library.impl("broadcast", lambda *args: None, "BackendSelect")
        start(OUT)
        torch.ops._c10d_functional.all_reduce(tensor, "sum", dist.group.WORLD.group_name)
        print(seen())
    """
    assert run(UP + textwrap.dedent(body), tmp_path) == "[('all_reduce', 1)]\n"


def test_a_late_start_without_ddp_stays_out_of_the_dispatcher(tmp_path: object) -> None:
    assert run(UP + "start(OUT)\nprint(in_dispatcher())", tmp_path) == "False\n"


def test_what_python_issues_is_seen_where_another_tool_holds_the_dispatcher(
    tmp_path: object,
) -> None:
    body = """
        library = torch.library.Library("c10d", "IMPL")
        library.impl("allreduce_", lambda *args: None, "BackendSelect")
        start(OUT)
        torch.ops._c10d_functional.broadcast(tensor, 0, dist.group.WORLD.group_name)
        dist.barrier()
        print(seen())
        print(session.current().recorder.failures)
    """
    lines = run(UP + textwrap.dedent(body), tmp_path).splitlines()
    assert lines[0] == "[('barrier', 1)]"
    assert "another tool holds" in lines[1]
