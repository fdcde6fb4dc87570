"""Makes traces by hand: the shortest words for "this rank did that then". Times are in ms."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np

from dsprof.analysis.aggregates import AGGREGATES
from dsprof.analysis.aggregates.communication import Communication
from dsprof.analysis.aggregates.environment import EnvironmentFacts
from dsprof.analysis.aggregates.run import Run
from dsprof.analysis.aggregates.steps import Steps
from dsprof.analysis.aggregates.traffic import Traffic
from dsprof.analysis.alignment.clocks import align, clock_samples, shared_clock
from dsprof.analysis.summarise import summarise_traces
from dsprof.analysis.summary import Aggregate, RunSummary
from dsprof.findings.finding import Finding
from dsprof.rules.rule import Rule
from dsprof.rules.runner import judge
from dsprof.trace.lines import COMM_LINE, OPEN_LINE, Line
from dsprof.trace.rank_trace import Collectives, CollectivesBuilder, RankTrace
from dsprof.trace.schema import (
    SCHEMA_VERSION,
    Collective,
    Copy,
    CounterRow,
    DeviceStep,
    EngineConfig,
    Fetch,
    Flush,
    Group,
    Header,
    Heartbeat,
    MemorySample,
    Phase,
    Stall,
    Step,
    StepCounters,
    Trailer,
)

MS = 1_000_000
SECOND = 1000 * MS
_EPOCH_NS = 1_700_000_000 * SECOND


def ns(ms: float) -> int:
    return round(ms * MS)


def header(rank: int = 0, world_size: int = 2, **fields: Any) -> Header:
    """A header of a run on one host, all ranks started at the same moment."""
    given = {
        "run_key": "run-1",
        "host": "node-a",
        "boot_id": "boot-a",
        "pid": 100 + rank,
        "started_epoch_ns": _EPOCH_NS,
        "started_monotonic_ns": 50 * SECOND,
        "backend": "gloo",
        "versions": {"torch": "2.13.0", "deepspeed": "0.19.8"},
        **fields,
    }
    return Header(schema_version=SCHEMA_VERSION, rank=rank, world_size=world_size, **given)


def group(world_size: int = 2, **fields: Any) -> Group:
    """The group of all ranks; its id is 1."""
    ranks = list(range(world_size))
    given = {"id": 1, "key": f"0/world/{ranks}", "label": "world", "ranks": ranks, **fields}
    return Group(size=len(given["ranks"]), backend="gloo", **given)


_ids = iter(range(1, 1 << 60))


def sync(op: str, at: float, took: float, *, nbytes: int = 1 << 20, **fields: Any) -> Line:
    """A collective that blocked its caller from `at` for `took` ms."""
    given: dict[str, Any] = {"group": 1, "seq": 0, "elements": nbytes // 4, "dtype": "float32"}
    given |= {"waits": 1, "blocked_ns": ns(took), **fields}
    end = ns(at + took)
    times = {"issue_ns": ns(at), "return_ns": end, "wait_ns": ns(at), "waited_ns": end}
    times["done_ns"] = end
    args = Collective(id=next(_ids), nbytes=nbytes, **(times | given))
    return COMM_LINE(name=op, args=args)


def issued(
    op: str,
    at: float,
    done: float | None,
    *,
    wait: float | None = None,
    waited: float | None = None,
    nbytes: int = 1 << 20,
    **fields: Any,
) -> Line:
    """An async collective: in flight from `at` to `done`, its wait from `wait` to `waited`."""
    given: dict[str, Any] = {"group": 1, "seq": 0, "elements": nbytes // 4, "dtype": "float32"}
    if wait is not None and waited is not None:
        given |= {"wait_ns": ns(wait), "waited_ns": ns(waited), "waits": 1}
        given |= {"blocked_ns": ns(waited - wait)}
    if done is not None:
        given |= {"done_ns": ns(done), "pending_ns": ns(done)}
    given |= {"return_ns": ns(at), **fields}
    args = Collective(id=next(_ids), nbytes=nbytes, is_async=True, issue_ns=ns(at), **given)
    return COMM_LINE(name=op, args=args)


def hanging(op: str, at: float, *, nbytes: int = 1 << 20, **fields: Any) -> Line:
    """A collective that the host still waited for when the file ended."""
    given: dict[str, Any] = {"group": 1, "seq": 0, "elements": nbytes // 4, "dtype": "float32"}
    given |= {"issue_ns": ns(at), "return_ns": ns(at), "pending_ns": ns(at), **fields}
    return OPEN_LINE(name=op, args=Collective(id=next(_ids), nbytes=nbytes, **given))


def failing(op: str, at: float, took: float, **fields: Any) -> Line:
    """A collective of which the wait ended in an exception."""
    return sync(op, at, took, done_ns=0, pending_ns=ns(at), **fields)


def alive(at: float) -> MemorySample:
    """What a rank wrote while nothing happened, before there were heartbeats."""
    return MemorySample("writer", ns(at))


def heartbeat(at: float, in_flight: int = 0, oldest: float = 0) -> Heartbeat:
    """What a rank writes while nothing happens."""
    return Heartbeat(ns(at), in_flight=in_flight, oldest_ns=ns(oldest))


def enqueued(op: str, at: float, *, nbytes: int = 1 << 20, **fields: Any) -> Line:
    """A collective that a device runs: the host saw no more of it than the call."""
    given: dict[str, Any] = {"group": 1, "seq": 0, "elements": nbytes // 4, "dtype": "float32"}
    given |= {"issue_ns": ns(at), "return_ns": ns(at), **fields}
    return COMM_LINE(name=op, args=Collective(id=next(_ids), nbytes=nbytes, **given))


def stall(of: Line, kind: str, start: float, end: float, **fields: Any) -> Stall:
    """How long a stream was held by a collective, on the main stream if no other is said."""
    given = {"stream": 0, "step": of.args.step, **fields}
    if "issued" in given:
        given["issued_ns"] = ns(given.pop("issued"))
    return Stall(
        kind=kind,
        collective=of.args.id,
        duration_ns=ns(end - start),
        start_ns=ns(start),
        end_ns=ns(end),
        **given,
    )


def device_step(number: int, start: float, end: float) -> DeviceStep:
    return DeviceStep(step=number, start_ns=ns(start), end_ns=ns(end))


def step(number: int, start: float, end: float, micro_steps: int = 1) -> Step:
    return Step(
        step=number,
        start_ns=ns(start),
        end_ns=ns(end),
        micro_steps=micro_steps,
        source="deepspeed",
    )


def span(name: str, start: float, end: float, step: int = 0, **fields: Any) -> Phase:
    given = {"micro_step": 0, "thread": 1, **fields}
    return Phase(name=name, start_ns=ns(start), end_ns=ns(end), step=step, **given)


def counters(step: int, blocked: float = 0, **fields: Any) -> StepCounters:
    """Collectives of a step that are not in the trace one by one: one row of them."""
    given = {"op": "all_reduce", "group": 1, "calls": 1, "nbytes": 1 << 20, **fields}
    return StepCounters(step, [CounterRow(blocked_ns=ns(blocked), **given)])


def flush(flush_id: int, at: float, took: float, **fields: Any) -> Flush:
    given = {"stage": 2, "elements": 262144, "capacity": 500_000_000, "nbytes": 1 << 20}
    given |= {"dtype": "float32", "parameters": 4, "cause": "end of backward", **fields}
    return Flush(id=flush_id, start_ns=ns(at), end_ns=ns(at + took), **given)


def fetch(fetch_id: int, at: float, took: float, **fields: Any) -> Fetch:
    given = {"kind": "fetch", "elements": 262144, "wait_ns": ns(took), **fields}
    return Fetch(id=fetch_id, start_ns=ns(at), end_ns=ns(at + took), **given)


def copy(at: float, took: float, **fields: Any) -> Copy:
    given = {"what": "gradient", "direction": "to host", "nbytes": 1 << 20, **fields}
    return Copy(start_ns=ns(at), end_ns=ns(at + took), **given)


def engine(stage: int = 2, accumulation: int = 1, **zero: Any) -> EngineConfig:
    """An engine; `zero` are keys that the user wrote under zero_optimization."""
    written = {
        "zero_optimization": {"stage": stage, **zero},
        "gradient_accumulation_steps": accumulation,
        "bf16": {"enabled": True},
    }
    defaults = {
        "reduce_scatter": True,
        "use_multi_rank_bucket_allreduce": True,
        "contiguous_gradients": True,
        "overlap_comm": stage == 3,
        "reduce_bucket_size": 500_000_000,
    }
    effective = written | {"zero_optimization": defaults | {"stage": stage, **zero}}
    return EngineConfig(
        engine=1,
        written=written,
        effective=effective,
        kind="DeepSpeedEngine",
        parameters=262144,
        parameter_dtype="bfloat16",
    )


def rank_trace(
    rank: int = 0,
    world_size: int = 2,
    *,
    comm: Sequence[Line] = (),
    engine: EngineConfig | None = None,
    head: Header | None = None,
    **fields: Any,
) -> RankTrace:
    """One rank's trace; a clean end unless `trailer=None` is given."""
    builder = CollectivesBuilder()
    builder.add([event for event in comm if isinstance(event, COMM_LINE)])
    builder.add([event for event in comm if isinstance(event, OPEN_LINE)])
    given = {
        "groups": {1: group(world_size)},
        "trailer": Trailer(reason="exit", steps=len(fields.get("steps", ()))),
        "engines": {} if engine is None else {engine.engine: engine},
        **fields,
    }
    return RankTrace(
        path=f"trace.rank{rank:05d}.json",
        header=head or header(rank, world_size),
        collectives=builder.build(),
        **given,
    )


def zero_rank(
    rank: int = 0,
    world_size: int = 2,
    *,
    stage: int = 2,
    steps: int = 6,
    accumulation: int = 1,
    step_ms: float = 100,
    comm_ms: float = 5,
    op: str = "all_reduce",
    nbytes: int = 1 << 20,
    zero: dict[str, Any] | None = None,
    extra: Callable[[int, float], Iterable[Line]] = lambda number, start: (),
    **fields: Any,
) -> RankTrace:
    """A rank of a ZeRO run: in each micro-step a forward, a backward, one flush of `comm_ms`.

    Each step fills 90 % of `step_ms` with phases; the last 10 % lie outside all of them.
    `extra(step, start_ms)` gives further collectives of a step.
    """
    comm: list[Line] = []
    made: dict[str, list[Any]] = {"steps": [], "spans": [], "flushes": []}
    for number in range(steps):
        start = number * step_ms
        made["steps"].append(step(number, start, start + step_ms, accumulation))
        comm += _micro_steps(made, number, start, accumulation, step_ms, comm_ms, op, nbytes, stage)
        comm += extra(number, start)
        made["spans"].append(span("step", start + 0.8 * step_ms, start + 0.9 * step_ms, number))
    config = engine(stage, accumulation, **(zero or {}))
    return rank_trace(rank, world_size, comm=comm, **{"engine": config, **made, **fields})


def _micro_steps(
    made: dict[str, list[Any]],
    number: int,
    start: float,
    accumulation: int,
    step_ms: float,
    comm_ms: float,
    op: str,
    nbytes: int,
    stage: int,
) -> list[Line]:
    comm = []
    length = 0.8 * step_ms / accumulation
    for micro in range(accumulation):
        begin = start + micro * length
        at = {"step": number, "micro_step": micro}
        made["spans"].append(span("forward", begin, begin + length / 2, **at))
        made["spans"].append(span("backward", begin + length / 2, begin + length, **at))
        issue = begin + length - comm_ms
        key = 1 + number * accumulation + micro
        details = {"nbytes": nbytes, "phase": "backward", **at}
        made["flushes"].append(flush(key, issue, comm_ms, stage=stage, **details))
        comm.append(sync(op, issue, comm_ms, seq=key, flush=key, requested=op, **details))
    return comm


def captured(rank: int = 0, *, window: range, **fields: Any) -> RankTrace:
    """A rank of a ZeRO run that holds only the steps of `window` in full detail.

    Of the others the steps themselves are left, and counters that say 20 ms blocked.
    """
    trace = zero_rank(rank, **fields)
    inside = np.isin(trace.collectives.step, list(window))
    for name in Collectives.__dataclass_fields__:
        if name != "words":
            setattr(trace.collectives, name, getattr(trace.collectives, name)[inside])
    trace.spans = [one for one in trace.spans if one.step in window]
    trace.flushes = [one for one in trace.flushes if one.step in window]
    trace.counters = [counters(s.step, blocked=20) for s in trace.steps if s.step not in window]
    return trace


def disagreeing() -> Iterator[RankTrace]:
    """Two ranks whose own slow and middle steps are others than those of their mean."""
    one = [10, 10, 90, 80, 70, 60, 55, 13, 12, 11, 10]
    two = [10, 10, 11, 12, 13, 60, 54, 70, 80, 90, 10]
    for rank, lengths in enumerate((one, two)):
        steps = [step(n, 100 * n, 100 * n + length) for n, length in enumerate(lengths)]
        yield rank_trace(rank, steps=steps)


def summary(*traces: RankTrace, kinds: Iterable[type[Aggregate]] = AGGREGATES) -> RunSummary:
    """Aggregates of traces of one run."""
    alignment = shared_clock([t.header for t in traces]) or align(map(clock_samples, traces))
    return summarise_traces(traces, alignment, [*kinds])


def summary_for(rule: Rule, *traces: RankTrace) -> RunSummary:
    """What a rule reads of traces of one run, and what the runner asks for every rule."""
    of_runner = (Communication, EnvironmentFacts, Run, Steps, Traffic)
    return summary(*traces, kinds={*rule.meta.needs, *of_runner})


def judged(rule: Rule, *traces: RankTrace, **thresholds: Any) -> list[Finding]:
    """What a rule says about a run; `thresholds` replace some of its own."""
    return judged_summary(rule, summary_for(rule, *traces), **thresholds)


def judged_summary(rule: Rule, run: RunSummary, **thresholds: Any) -> list[Finding]:
    """What a rule says about aggregates of a run."""
    given = replace(rule.thresholds, **thresholds)
    findings = judge(run, [rule], {rule.meta.id: given})
    for finding in findings:
        assert_can_be_shown(finding)
    return findings


def assert_can_be_shown(finding: Finding) -> None:
    """A finding is read back from JSON as it was, and no sentence has a gap."""
    assert msgspec.convert(msgspec.to_builtins(finding), Finding) == finding
    texts = (finding.title, finding.summary, finding.problem, finding.fix)
    for text in (*texts, finding.cause, finding.action):
        assert not re.search(r"\bNone\b|\bnan\b|  ", text), text
    assert finding.ranks == tuple(sorted(set(finding.ranks)))
    low, high = finding.saving_ms_per_step or (0, 1)
    assert 0 <= low <= high > 0


def said(rule: Rule, *traces: RankTrace, **thresholds: Any) -> Finding:
    """The only finding of a rule."""
    (finding,) = judged(rule, *traces, **thresholds)
    return finding


def assert_reached_at(rule: Rule, *traces: RankTrace, **measured: float) -> None:
    """A threshold that equals what was measured is reached, one that is a trifle higher is not."""
    run = summary_for(rule, *traces)
    for name, value in measured.items():
        trifle = 1 if isinstance(value, int) else math.ulp(value)
        given = [replace(rule.thresholds, **{name: value + n * trifle}) for n in (-1, 0, 1)]
        lower, equal, higher = (
            [(one.status, one.severity) for one in judge(run, [rule], {rule.meta.id: thresholds})]
            for thresholds in given
        )
        assert lower == equal != higher, name
