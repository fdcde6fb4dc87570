"""What is said of sums over 20 steps, of an engine with 1000 parameters in bfloat16."""

from __future__ import annotations

import pytest

from dsprof.analysis.aggregates.intent import Account, Amount, Progress, Sent
from dsprof.analysis.rank.intent import Demand, Expected, Kind, Span
from dsprof.analysis.run.traffic_differences import Line, compare
from tests.factories.trace import engine

STEPS = 20
PASS = 1000 * STEPS  # elements
FAMILIES = {"gradients": "all_reduce", "parameters": "all_gather", "update": "all_gather"}


def sent(kind: Kind, family: str = "", **fields) -> Sent:
    given = {"dtype": "bfloat16", "role": "", "by_library": True, "phase": "", "site": ""} | fields
    return Sent(kind=kind, family=family or FAMILIES[kind], **given)


def line(kind: Kind, amount: Amount, family: str = "", **done: int) -> Line:
    """What is said of traffic of which two bytes of each parameter and step are asked for."""
    demand = Demand(kind, (FAMILIES[kind],), "so it is")
    account = Account(
        demands={demand: Expected(Span(STEPS, 2 * STEPS), Span(2 * PASS, 2 * PASS))},
        sent={sent(kind, family): amount},
        progress=Progress(**({"steps": STEPS, "micro_steps": STEPS} | done)),
    )
    (found,) = compare(account, engine(2), 0.01, 0.02)
    return found


def amount(of_two: float, elements: float | None = None, calls: int = STEPS) -> Amount:
    """Bytes and elements as shares of what one pass in two bytes sends."""
    share = of_two if elements is None else elements
    return Amount(calls, round(of_two * 2 * PASS), round(share * PASS))


@pytest.mark.parametrize(
    ("share", "calls", "verdict"),
    [
        (1, STEPS, "as asked"),
        (1, 2 * STEPS, "as asked"),
        (0.99, STEPS, "as asked"),
        (1.01, STEPS, "as asked"),
        (1, STEPS - 1, "explained"),
        (1, 2 * STEPS + 1, "explained"),
        (0.98, STEPS, "unexplained"),
        (1.02, STEPS, "unexplained"),
        (0, 0, "explained"),
    ],
)
def test_as_asked_is_what_has_the_bytes_and_the_calls(share, calls, verdict):
    found = line("update", amount(share, calls=calls))
    assert found.verdict == verdict
    assert found.expected_calls == (1, 2)
    assert found.expected_bytes == (2000, 2000)
    assert (found.calls, found.nbytes) == (calls / STEPS, share * 2000)


def test_a_family_that_nothing_asks_for_is_named():
    found = line("gradients", amount(1), "reduce_scatter")
    assert (found.verdict, found.cause) == ("unexplained", "reduce_scatter: gradients need none")
    assert found.families == ("reduce_scatter",)


@pytest.mark.parametrize(
    ("kind", "total", "given", "cause"),
    [
        (
            "gradients",
            amount(2, 1),
            {"reducing_micro_steps": STEPS, "flushed_elements": PASS},
            "not sent as bfloat16",
        ),
        (
            "gradients",
            amount(3),
            {
                "reducing_micro_steps": 3 * STEPS,
                "micro_steps": 3 * STEPS,
                "flushed_elements": 3 * PASS,
            },
            "3 micro-steps per step, where 1 are configured",
        ),
        (
            "gradients",
            amount(0.5),
            {"reducing_micro_steps": STEPS // 2, "flushed_elements": PASS // 2},
            "reduced in 0.50 of 1 micro-steps",
        ),
        (
            "gradients",
            amount(0.75),
            {"reducing_micro_steps": STEPS, "flushed_elements": 3 * PASS // 4},
            "25 % of the parameters had no gradient",
        ),
        (
            "gradients",
            amount(0.75),
            {"reducing_micro_steps": STEPS, "flushed_elements": PASS},
            "",
        ),
        ("update", amount(2, 1), {}, "not sent as bfloat16"),
        ("update", amount(2), {}, ""),
        ("parameters", amount(0.5), {}, "some were still gathered, or not needed"),
        ("parameters", amount(2.02), {}, "released or resharded before their next use"),
        ("parameters", amount(2.03), {}, ""),
        ("parameters", amount(4), {"micro_steps": 2 * STEPS}, "gathered 2 times per micro-step"),
        ("parameters", amount(3.03), {"recomputing_ranks": 2}, "once more for recomputation"),
        ("parameters", amount(3.04), {"recomputing_ranks": 2}, ""),
        ("parameters", amount(6), {"forwards": 2 * STEPS}, "2 forwards per micro-step"),
        ("parameters", amount(6.2), {"forwards": 2 * STEPS}, ""),
    ],
)
def test_a_difference_has_a_cause_that_explains_all_of_it(kind, total, given, cause):
    found = line(kind, total, **given)
    assert found.verdict == ("explained" if cause else "unexplained")
    assert cause in found.cause
    assert bool(found.cause) is bool(cause)


@pytest.mark.parametrize(
    ("share", "elements", "cause"),
    [
        (0.5, 1, "sent in half the bytes"),
        (0.5, 0.25, "50 % of the gradients were not reduced"),
        (0.75, 0.75, "25 % of the gradients were not reduced"),
        (1.5, 1.5, ""),
    ],
)
def test_without_an_engine_the_layout_of_buckets_is_the_measure(share, elements, cause):
    demand = Demand("gradients", ("all_reduce",), "the layout")
    total = amount(share, elements)
    account = Account(
        {demand: Expected(None, Span(2 * PASS, 2 * PASS))},
        {sent("gradients"): total},
        Progress(steps=STEPS),
    )
    (found,) = compare(account, None, 0.01, 0.02)
    assert found.cause.startswith(cause)
    assert bool(found.cause) is bool(cause)
    assert found.expected_calls is None


@pytest.mark.parametrize(("forwards", "unit"), [(2, "micro-step"), (1, "forward")])
def test_what_trains_without_an_engine_gathers_by_micro_step(forwards, unit):
    done = Progress(steps=STEPS, micro_steps=STEPS, forwards=forwards * STEPS)
    demand = Demand("parameters", (FAMILIES["parameters"],), "so it is")
    asked = Expected(None, Span(2 * PASS, 2 * PASS))
    account = Account({demand: asked}, {sent("parameters"): amount(2)}, done)
    (found,) = compare(account, None, 0.01, 0.02)
    assert found.cause.startswith(f"gathered 2 times per {unit}:")


def test_parameters_that_nothing_asks_for_are_at_their_first_use():
    account = Account({}, {sent("parameters"): amount(1)}, Progress(steps=STEPS))
    (found,) = compare(account, engine(3), 0.01, 0.02)
    assert (found.verdict, found.expected_bytes) == ("explained", None)
    assert "first use" in found.cause


@pytest.mark.parametrize(
    ("fields", "stage", "verdict", "cause"),
    [
        ({"family": "all_reduce"}, 2, "unexplained", "as many bytes as the gradients at a.py:1"),
        ({"family": "broadcast", "role": "tensor"}, 2, "explained", "tensor parallel"),
        ({"family": "send"}, 2, "explained", "a pipeline"),
        ({"family": "all_to_all"}, 2, "explained", "expert or sequence parallelism"),
        ({"family": "broadcast", "by_library": False}, 2, "explained", "asked for by the program"),
        ({"family": "broadcast"}, 2, "explained", "outside of forward, backward and step"),
        ({"family": "broadcast", "phase": "step"}, 2, "unexplained", "through deepspeed.comm"),
        ({"family": "all_gather", "phase": "step"}, 3, "explained", "GatheredParameters"),
        ({"family": "all_gather", "phase": ""}, 3, "explained", "GatheredParameters"),
        ({"family": "all_gather", "phase": "step"}, 2, "unexplained", "through deepspeed.comm"),
    ],
)
def test_what_is_not_asked_for_is_named_by_who_did(fields, stage, verdict, cause):
    gradients = Demand("gradients", ("all_reduce",), "so it is")
    account = Account(
        {gradients: Expected(None, Span(2 * PASS, 2 * PASS))},
        {sent("gradients"): amount(1), sent("other", site="a.py:1", **fields): amount(1)},
        Progress(steps=STEPS, micro_steps=STEPS),
    )
    demands, other = compare(account, engine(stage), 0.01, 0.02)
    assert demands.verdict == "as asked"
    assert (other.what, other.verdict) == ("other", verdict)
    assert other.cause.startswith(cause) or cause in other.cause
    assert (other.calls, other.nbytes) == (1, 2000)


@pytest.mark.parametrize(("share", "verdict"), [(0.02, "explained"), (0.03, "unexplained")])
def test_little_that_nothing_asks_for_is_small(share, verdict):
    account = Account(
        {},
        {sent("update"): amount(1), sent("other", "broadcast", phase="step"): amount(share)},
        Progress(steps=STEPS),
    )
    *_, other = compare(account, engine(2), 0.01, 0.02)
    assert (other.verdict, other.cause == "small") == (verdict, verdict == "explained")


def test_small_messages_are_summed_up_by_who_asked_for_them():
    account = Account(
        {},
        {
            sent("small", "all_reduce"): Amount(20, 160, 40),
            sent("small", "broadcast"): Amount(40, 320, 80),
            sent("small", "barrier", by_library=False): Amount(60, 0, 0),
        },
        Progress(steps=STEPS),
    )
    library, program = compare(account, engine(2), 0.01, 0.02)
    assert (library.what, library.calls, library.nbytes) == ("small messages", 3, 24)
    assert library.families == ("all_reduce", "broadcast")
    assert (program.what, program.calls) == ("small messages of the program", 3)
