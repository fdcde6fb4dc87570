from __future__ import annotations

from typing import Any

import pytest

from dsprof.findings.finding import Finding, Severity, Status
from dsprof.rules.memory.communication_buffer_pressure import CommunicationBufferPressure
from dsprof.trace.device_counters import PEAK_RESERVED, RETRIES
from dsprof.trace.rank_trace import RankTrace
from dsprof.trace.schema import BucketLayout
from tests.factories.memory import GIB, on_device
from tests.factories.trace import (
    assert_reached_at,
    engine,
    fetch,
    flush,
    rank_trace,
    said,
    step,
    sync,
)

RULE = CommunicationBufferPressure()

LAYER = GIB // 4  # bytes in float32
ELEMENTS = LAYER // 4
LAYERS = 4
PADDING = 4 * (LAYERS - 1)  # of layers that were let go, which releases do not count


def passes(*, keep: bool, library: str = "", parts: int = 1) -> dict[str, Any]:
    """Six steps that gather each layer and let it go at once, or all at the end of the step."""
    comm, fetches, flushes, steps = [], [], [], []
    for number in range(6):
        start, shared = 100 * number, {"step": number, "library": library}
        steps.append(step(number, start, start + 100))
        for n in range(LAYERS):
            at, module = start + 10 * n, f"layer{n}"
            one = fetch(1 + LAYERS * number + n, at, 1, module=module, **shared)
            one.elements = ELEMENTS
            sent = {"step": number, "fetch": one.id, "phase": "forward"}
            comm += [sync("all_gather", at, 1, nbytes=LAYER // parts, **sent) for _ in range(parts)]
            gone = fetch(1000 + one.id, start + 90 if keep else at + 5, 1, kind="release", **shared)
            gone.elements = ELEMENTS - 1  # without padding
            fetches += [one, gone]
            if library:
                made = flush(2000 + one.id, at + 50, 1, step=number, library=library, stage=-1)
                made.elements, made.module = ELEMENTS, module
                sent = {"step": number, "flush": made.id, "phase": "backward"}
                comm.append(sync("reduce_scatter", at + 50, 1, nbytes=LAYER, **sent))
                flushes.append(made)
    return {"comm": comm, "fetches": fetches, "flushes": flushes, "steps": steps}


def run(peak: float = 2, retries: int = 0, **fields: Any) -> RankTrace:
    counters = {PEAK_RESERVED: round(peak * GIB)}
    return on_device(counters | {RETRIES: 0}, counters | {RETRIES: retries}, **fields)


def zero_3(*, keep: bool = True, retries: int = 0, peak: float = 2, **zero: Any) -> RankTrace:
    config = engine(3, contiguous_gradients=False, **zero)
    return run(peak, retries, engine=config, **passes(keep=keep, parts=2))


def held(finding: Finding) -> dict[str, int]:
    (table,) = finding.evidence
    return {str(row[0]): int(str(row[1])) for row in table.rows}


def test_parameters_that_stay_until_backward_are_named_where_memory_is_short() -> None:
    finding = said(RULE, zero_3(retries=2))
    assert (finding.status, finding.severity) == (Status.FAIL, Severity.MEDIUM)
    assert held(finding) == {"parameters gathered by ZeRO-3": LAYERS * LAYER}
    assert "1.00 GiB, 50 % of the reserved memory" in finding.summary
    assert finding.config_patch == {"zero_optimization": {"stage3_max_reuse_distance": 0}}


def test_its_thresholds_are_reached_at_their_value():
    assert_reached_at(RULE, zero_3(retries=2), share=0.5)


def test_advice_is_checked_against_what_is_set() -> None:
    short = {"retries": 2, "keep": False, "peak": 0.5, "stage3_max_reuse_distance": 0}
    finding = said(RULE, zero_3(**short))
    assert held(finding) == {"parameters gathered by ZeRO-3": LAYER + PADDING}
    patch = {"zero_optimization": {"stage3_prefetch_bucket_size": 25_000_000}}
    assert finding.config_patch == patch
    finding = said(RULE, zero_3(stage3_prefetch_bucket_size=0, **short))
    assert finding.status is Status.FAIL
    assert finding.config_patch is None
    assert "largest module" in finding.action


def test_where_there_was_room_it_is_a_remark() -> None:
    finding = said(RULE, zero_3())
    assert finding.status is Status.INFO
    assert finding.config_patch is None
    assert finding.action.startswith("No change is needed")


def test_a_small_share_passes_with_the_figures() -> None:
    finding = said(RULE, zero_3(keep=False, retries=2))
    assert finding.status is Status.PASS
    assert held(finding) == {"parameters gathered by ZeRO-3": LAYER + PADDING}
    assert said(RULE, zero_3(keep=False, retries=2), share=0.1).status is Status.FAIL


@pytest.mark.parametrize(("keep", "advice"), [(True, "reshard_after_forward"), (False, "smaller")])
def test_units_of_fsdp(keep: bool, advice: str) -> None:
    finding = said(RULE, run(0.75, retries=1, **passes(keep=keep, library="FSDP2")))
    assert finding.status is Status.FAIL
    assert held(finding) == {
        "parameters gathered by FSDP": LAYER * LAYERS if keep else LAYER + PADDING,
        "the largest FSDP reduce-scatter": LAYER,
    }
    assert advice in finding.action


def ddp(*, view: bool = False) -> RankTrace:
    old = BucketLayout(0, 1, [9 * GIB])
    new = BucketLayout(0, 1, [GIB, GIB // 2], gradient_as_bucket_view=view, since_ns=5)
    return run(4, retries=1, layouts=[old, new], steps=[step(n, n, n + 1) for n in range(4)])


def test_buckets_of_ddp_lie_beside_the_gradients_unless_gradients_lie_in_them() -> None:
    finding = said(RULE, ddp())
    assert finding.status is Status.FAIL
    assert held(finding) == {"buckets of DDP": 3 * GIB // 2}
    assert "gradient_as_bucket_view=True" in finding.action
    assert said(RULE, ddp(view=True)).status is Status.NOT_APPLICABLE


def test_gradient_buckets_of_zero_are_judged_elsewhere() -> None:
    trace = run(2, retries=1, engine=engine(2), steps=[step(n, n, n + 1) for n in range(4)])
    trace.engines[2] = engine(2, reduce_bucket_size=100_000_000)
    trace.engines[2].engine = 2
    trace.engines[3] = engine(3)  # a reference model, which reduces nothing
    trace.engines[3].engine, trace.engines[3].optimizer = 3, "DeepSpeedZeRoOffload"
    finding = said(RULE, trace)
    assert finding.status is Status.INFO
    assert held(finding) == {"gradient buckets of ZeRO": 2 * 600_000_000}


@pytest.mark.parametrize(
    "trace",
    [
        rank_trace(engine=engine(2)),
        run(steps=[step(n, n, n + 1) for n in range(4)]),
    ],
    ids=["cpu", "nothing is held"],
)
def test_it_does_not_apply(trace: RankTrace) -> None:
    assert said(RULE, trace).status is Status.NOT_APPLICABLE


@pytest.mark.parametrize(
    "trace",
    [
        on_device(None, engine=engine(3), **passes(keep=True)),
        run(),
    ],
    ids=["no counters", "no step in full detail"],
)
def test_it_cannot_tell(trace: RankTrace) -> None:
    assert said(RULE, trace).status is Status.UNKNOWN


@pytest.mark.parametrize("value", ["many", None, [], -1])
def test_broken_settings_are_no_error(value: Any) -> None:
    broken = {"stage3_max_reuse_distance": value, "stage3_prefetch_bucket_size": value}
    assert said(RULE, zero_3(retries=1, **broken)).status is Status.FAIL
