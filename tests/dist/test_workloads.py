"""Each feature of DeepSpeed that runs on a CPU: all of its traffic is seen, with its meaning.

The scripts lie beside the repository, in ../shared/workloads, and run as they are: once bare under
the oracle and once recorded by environment variable alone.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dsprof.diagnosis.build import diagnose
from dsprof.findings.finding import Status
from dsprof.trace.rank_trace import RankTrace
from dsprof.trace.reader import read_trace
from dsprof.trace.run import find_run
from tests.dist.launch import PROGRAMS, ROOT, launch
from tests.dist.traces import operations

WORKLOADS = ROOT.parent / "shared" / "workloads"
STEPS = 3
ELEMENTS = 4 * (64 * 64 + 64)  # of the model that most workloads train

pytestmark = [
    pytest.mark.dist,
    pytest.mark.long,
    pytest.mark.skipif(
        not [entry for entry in entry_points(group="torch.backends") if entry.name == "dsprof"],
        reason="DSPROF=1 needs the entry point of an installed dsprof: pip install -e .",
    ),
]

RANKS = {"hpz4": 4, "moe": 4}
OUR_OWN = ("two_engines", "hybrid_engine", "inference")
SMALL = ("--steps", 3, "--width", 64, "--layers", 2, "--context", 32, "--dtype", "bfloat16")
EXAMPLES = {
    "ddp": ("ddp",),
    "fsdp": ("fsdp",),
    **{f"zero{stage}": ("deepspeed_zero", "--stage", stage, *SMALL) for stage in range(4)},
}
# It compiles, and computes in four processes: that fills two cores.
ZENFLOW = pytest.param("zenflow", marks=pytest.mark.alone)
SHARED = (
    "activation_checkpointing",
    "auto_tensor_parallel",
    "bf16_optimizer",
    "hpz",
    "hpz4",
    "moe",
    "offload_optimizer",
    "offload_param",
    "pipeline",
    "torch_compile",
    "ulysses",
    ZENFLOW,
    "zero3_release",
)
EXPLAINED = [name for name in SHARED if name not in ("hpz4", "offload_param", "torch_compile")]


@dataclass(frozen=True)
class Run:
    """A workload that ran twice: the oracle's files and the traces, by rank."""

    bare: Path
    recorded: Path
    traces: list[RankTrace]

    def oracle(self, what: str, rank: int) -> Any:
        return json.loads((self.bare / f"{what}.rank{rank}.json").read_text())


def script_of(name: str) -> tuple[Path, list[object]]:
    """Return the file of a workload and what it is given."""
    if name in EXAMPLES:
        script, *arguments = EXAMPLES[name]
        return ROOT / "examples" / f"{script}.py", arguments
    return (PROGRAMS if name in OUR_OWN else WORKLOADS) / f"{name}.py", []


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Run]:
    """Run a workload, or return how it ran."""

    @cache
    def run(name: str) -> Run:
        script, given = script_of(name)
        if not script.exists():
            pytest.skip(f"{script} is not there")
        out = tmp_path_factory.mktemp(name)
        program, nproc = PROGRAMS / "observed.py", RANKS.get(name, 2)
        bare = {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
        args = [script, out / "bare", "--count", *given]
        launch(program, nproc, args=args, env=bare, imported="compiler").check()
        on = {"DSPROF": "1", "DSPROF_OUT": str(out / "traces")}
        args = [script, out / "recorded", *given]
        # Our examples begin as a user's run: without what dsprof hooks when it is imported.
        imported = "torch" if name in EXAMPLES else "compiler"
        launch(program, nproc, args=args, env=on, imported=imported).check()
        files = sorted((out / "traces").glob("*.json"))
        assert len(files) == nproc
        return Run(out / "bare", out / "recorded", [read_trace(file) for file in files])

    return run


@pytest.mark.parametrize("name", [*SHARED, *OUR_OWN, *EXAMPLES])
def test_all_traffic_is_seen_and_nothing_is_changed(run: Callable[[str], Run], name: str) -> None:
    done = run(name)
    for trace in done.traces:
        on_wire = np.flatnonzero(trace.collectives.on_wire)
        assert operations(trace, on_wire) == done.oracle("counts", trace.rank)
        training = (done.recorded / f"training.rank{trace.rank}.json").read_text()
        assert json.loads(training) == done.oracle("training", trace.rank)
        assert trace.trailer is not None
        assert trace.trailer.failed_hooks == {}
        assert trace.trailer.unmatched_waits == 0
        assert [hook for hook in trace.hooks if hook.why] == []


@pytest.mark.parametrize("name", [*EXPLAINED, "ddp"])
def test_no_traffic_is_unexplained(run: Callable[[str], Run], name: str) -> None:
    diagnosis = diagnose(find_run([trace.path for trace in run(name).traces]))
    findings = [one for one in diagnosis.findings if one.rule == "unexplained-traffic"]
    assert findings
    assert not [one for one in findings if one.status in (Status.FAIL, Status.ERROR)]


def calls(trace: RankTrace, op: str, phase: str, engine: int | None = None) -> Counter[str]:
    """The number of calls of an operation in a phase, by the role of their group."""
    comm = trace.collectives
    chosen = (comm.op == comm.code(op)) & (comm.phase == comm.code(phase))
    if engine is not None:
        steps = [step.step for step in trace.steps if step.engine == engine]
        chosen &= np.isin(comm.step, steps)
    return Counter(trace.groups[int(group)].role for group in comm.group[chosen])


def phases(trace: RankTrace, engine: int) -> Counter[str]:
    return Counter(span.name for span in trace.spans if span.engine == engine)


TRAINING = {"forward": STEPS, "backward": STEPS, "step": STEPS}


@pytest.mark.parametrize(
    ("name", "engines"),
    [
        ("activation_checkpointing", 2),
        ("auto_tensor_parallel", 1),
        ("bf16_optimizer", 1),
        ("hpz", 1),
        ("moe", 3),
        ("offload_optimizer", 3),
        ("offload_param", 1),
        ("torch_compile", 2),
        ("zero3_release", 2),
    ],
)
def test_every_engine_has_its_steps_and_phases(
    run: Callable[[str], Run], name: str, engines: int
) -> None:
    for trace in run(name).traces:
        assert sorted(trace.engines) == list(range(engines))
        for engine in range(engines):
            steps = [step for step in trace.steps if step.engine == engine]
            assert [step.micro_steps for step in steps] == [1] * STEPS
            assert phases(trace, engine) == TRAINING


@pytest.mark.alone
def test_zenflow_takes_a_step_at_each_update(run: Callable[[str], Run]) -> None:
    """It makes its update interval of two the gradient accumulation; three micro-steps are run."""
    for trace in run("zenflow").traces:
        assert [step.micro_steps for step in trace.steps] == [2]
        assert phases(trace, 0) == TRAINING
        assert copied(trace, 0)["gradient", "to host", "backward"] > 0


def test_experts_and_their_replicas_are_told_apart(run: Callable[[str], Run]) -> None:
    """Four ranks: two expert groups of two, and each expert on two ranks."""
    for trace in run("moe").traces:
        members = {g.role: g.ranks for g in trace.groups.values()}
        pair = 2 * (trace.rank // 2)
        assert members["expert"] == [pair, pair + 1]
        assert members["expert_data"] == [trace.rank % 2, trace.rank % 2 + 2]
        assert members["data"] == [0, 1, 2, 3]
        for phase in ("forward", "backward"):
            assert set(calls(trace, "all_to_all_single", phase)) == {"expert"}
        assert {"data", "expert_data"} <= set(calls(trace, "all_reduce", "backward"))


def test_ulysses_exchanges_heads_for_sequence(run: Callable[[str], Run]) -> None:
    for trace in run("ulysses").traces:
        assert trace.steps == []
        comm = trace.collectives
        assert len(comm) == 8
        assert {comm.words[word] for word in comm.requested} == {"all_to_all_single"}
        assert [group.role for group in trace.groups.values()] == ["sequence"]


def test_tensor_parallel_layers_reduce_in_their_group(run: Callable[[str], Run]) -> None:
    for trace in run("auto_tensor_parallel").traces:
        assert calls(trace, "all_reduce", "forward")["tensor"] >= STEPS


def test_instructions_of_a_pipeline_are_phases(run: Callable[[str], Run]) -> None:
    micro_batches = 4
    every = STEPS * micro_batches
    for trace in run("pipeline").traces:
        assert [step.micro_steps for step in trace.steps] == [micro_batches] * STEPS
        assert trace.engines[0].pipeline_stages == 2
        seen = phases(trace, 0)
        moved = ("send activation", "recv grad") if trace.rank == 0 else ("recv activation",)
        for name in ("forward", "backward", "load micro batch", *moved):
            assert seen[name] == every, name
        assert seen["step"] == seen["reduce grads"] == STEPS
        comm = trace.collectives
        sent = np.isin(comm.op, [comm.code("send"), comm.code("recv")]) & (comm.step >= 0)
        names = {comm.words[comm.phase[i]] for i in np.flatnonzero(sent)} - {""}
        assert all(name.startswith(("send ", "recv ")) for name in names)
        for step in range(STEPS):
            micro = Counter(
                span.micro_step
                for span in trace.spans
                if span.step == step and span.name in ("forward", "backward")
            )
            assert micro == dict.fromkeys(range(micro_batches), 2)


def test_secondary_shards_of_hpz_are_gathered_in_their_own_group(
    run: Callable[[str], Run],
) -> None:
    for trace in run("hpz4").traces:
        sizes = {g.role: g.size for g in trace.groups.values()}
        assert (sizes["hpz"], sizes["data"]) == (2, 4)
        backward = calls(trace, "all_gather_into_tensor", "backward", engine=0)
        assert backward == {"hpz": 4 * STEPS}
        assert "hpz" not in calls(trace, "reduce_scatter_tensor", "backward")


def fetches(trace: RankTrace, engine: int) -> Counter[tuple[str, str]]:
    steps = {step.step for step in trace.steps if step.engine == engine}
    return Counter(
        (fetch.kind, "recomputation" if fetch.is_recomputation else fetch.phase)
        for fetch in trace.fetches
        if fetch.step in steps
    )


def test_the_third_gather_of_stage_3_is_for_recomputation(run: Callable[[str], Run]) -> None:
    for trace in run("activation_checkpointing").traces:
        seen = fetches(trace, engine=1)
        layers = 4 * STEPS
        assert seen["fetch", "forward"] == layers
        assert seen["fetch", "recomputation"] == layers
        assert seen["fetch", "backward"] == layers


def test_parameters_are_fetched_released_and_fetched_again(run: Callable[[str], Run]) -> None:
    for trace in run("zero3_release").traces:
        seen = fetches(trace, engine=0)
        assert seen["fetch", "forward"] == seen["fetch", "backward"] == 4 * STEPS
        assert seen["release", "forward"] > 0
        assert seen["release", "backward"] > 0
        assert ("prefetch", "forward") not in seen


def test_a_prefetch_is_one_gather_for_the_modules_to_come(run: Callable[[str], Run]) -> None:
    for trace in run("offload_param").traces:
        ahead = [fetch for fetch in trace.fetches if fetch.kind == "prefetch"]
        assert len(ahead) == STEPS - 1  # in the first step the order is not known yet
        comm = trace.collectives
        for fetch in ahead:
            assert int(comm.elements[comm.fetch == fetch.id].sum()) == fetch.elements


def copied(trace: RankTrace, engine: int) -> Counter[tuple[str, str, str]]:
    steps = {step.step for step in trace.steps if step.engine == engine}
    total: Counter[tuple[str, str, str]] = Counter()
    for copy in trace.copies:
        if copy.step in steps:
            total[copy.what, copy.direction, copy.phase] += copy.nbytes
    return total


def test_offloaded_gradients_and_parameters_are_copied(run: Callable[[str], Run]) -> None:
    """This rank's half goes to the host in fp32 and comes back in bf16."""
    half = ELEMENTS // 2
    for trace in run("offload_optimizer").traces:
        for engine in (0, 1):
            assert copied(trace, engine) == {
                ("gradient", "to host", "backward"): STEPS * 4 * half,
                ("parameter", "to device", "step"): STEPS * 2 * half,
            }
        assert copied(trace, engine=2) == {  # and at stage 3 in bf16, too
            ("gradient", "to host", "backward"): STEPS * (2 + 4) * half,
            ("parameter", "to device", "step"): STEPS * 2 * half,
        }
        assert all(copy.end_ns > copy.start_ns for copy in trace.copies)


def test_offloaded_parameters_are_copied_for_each_gather(run: Callable[[str], Run]) -> None:
    for trace in run("offload_param").traces:
        copies = copied(trace, engine=0)
        comm = trace.collectives
        gathered = comm.nbytes[(comm.fetch > 0)].sum()
        to_device = sum(copies["parameter", "to device", phase] for phase in TRAINING)
        assert to_device == gathered // 2  # each of two ranks gives its half
        assert copies["parameter", "within host", "step"] == STEPS * ELEMENTS


def test_copies_are_a_part_of_the_step_and_of_the_report(run: Callable[[str], Run]) -> None:
    done = run("offload_optimizer")
    diagnosis = diagnose(find_run([done.traces[0].path, done.traces[1].path]))
    assert diagnosis.steps.total.copies_ns
    assert {(row.what, row.direction) for row in diagnosis.copies} == {
        ("gradient", "to host"),
        ("parameter", "to device"),
    }


def test_two_engines_count_their_own_steps(run: Callable[[str], Run]) -> None:
    for trace in run("two_engines").traces:
        seen = Counter((step.engine, step.micro_steps) for step in trace.steps)
        assert seen == {(0, 2): 2, (1, 1): 4}
        assert phases(trace, 0) == phases(trace, 1) == dict.fromkeys(TRAINING, 4)
        micro = [span.micro_step for span in trace.spans if (span.name, span.engine) == ("step", 0)]
        assert micro == [0, 1, 0, 1]


def test_a_hybrid_engine_generates_and_trains(run: Callable[[str], Run]) -> None:
    for trace in run("hybrid_engine").traces:
        assert phases(trace, 0) == {**TRAINING, "generate": STEPS}
        assert len(trace.steps) == STEPS


def test_inference_has_no_steps_and_no_finding_that_needs_them(run: Callable[[str], Run]) -> None:
    done = run("inference")
    for trace in done.traces:
        assert trace.steps == []
        assert len(trace.collectives) >= 3
    diagnosis = diagnose(find_run([trace.path for trace in done.traces]))
    failed = [finding.rule for finding in diagnosis.findings if finding.status is Status.FAIL]
    assert failed == []
    assert diagnosis.run.steps == 0
