from __future__ import annotations

from dsprof.analysis.aggregates.step_starts import StepStarts
from dsprof.diagnosis.build import diagnosis_of
from tests.factories.trace import header, rank_trace, step, summary

EPOCH_NS = 1_700_000_000_900_000_000


def rank(number: int, starts_ms: dict[int, float], **head: int):
    steps = [step(one, start, start + 10) for one, start in starts_ms.items()]
    return rank_trace(
        number, head=header(number, **({"started_epoch_ns": EPOCH_NS} | head)), steps=steps
    )


def test_a_step_began_when_its_first_rank_began_it() -> None:
    ranks = [rank(0, {0: 0, 1: 2200, 2: 3000}), rank(1, {1: 2050, 2: 3200, 3: 9000})]
    for order in (ranks, ranks[::-1]):
        found = summary(*order)[StepStarts]
        began_s = dict(zip(found.number.tolist(), found.began_s.tolist(), strict=True))
        first = EPOCH_NS // 10**9
        assert began_s == {0: first, 1: first + 2, 2: first + 3, 3: first + 9}


def test_a_diagnosis_has_it_for_each_step() -> None:
    found = diagnosis_of(summary(rank(0, {0: 0, 1: 2200}), rank(1, {0: 0, 1: 2200})), {})
    assert [row.began_s for row in found.steps.rows] == [EPOCH_NS // 10**9, EPOCH_NS // 10**9 + 3]


def test_a_file_that_does_not_say_when_it_was_made_tells_no_time() -> None:
    found = diagnosis_of(summary(rank(0, {0: 0, 1: 2200}, started_epoch_ns=0)), {})
    assert [row.began_s for row in found.steps.rows] == [None, None]
