"""What a file does not hold is unknown in every figure and sentence, and never zero."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dsprof.analysis.aggregates import AGGREGATES
from dsprof.diagnosis.build import diagnose, diagnosis_of
from dsprof.diagnosis.document import to_json
from dsprof.diagnosis.model import Diagnosis
from dsprof.findings.finding import Finding, Status
from dsprof.reports import render
from dsprof.trace.rank_trace import RankTrace
from dsprof.trace.run import find_run
from tests.factories import device, kineto
from tests.factories.trace import header, issued, summary, sync, zero_rank
from tests.shared_data import traces

SAID = (Status.FAIL, Status.INFO, Status.PASS)
NOT_MEASURED = {"waits", "quality", "thresholds", "timelines", "environment"}
"""Sections of counts: nothing of what is withheld here goes into them."""
COUNTS = {"steps", "measured_steps", "warmup_steps", "calls", "total_ns", "other_ns"}
"""Of no steps there are none, and their sum is nothing."""


def extra(number: int, start: float) -> list[Any]:
    """Collectives of every kind that rules look for."""
    small = [sync("all_reduce", start + 81 + i / 10, 0.05, nbytes=8, step=number) for i in range(9)]
    times = {"wait": start + 7, "waited": start + 9}
    return [*small, issued("all_gather", start + 5, start + 9, step=number, **times)]


def known(**fields: Any) -> list[RankTrace]:
    """Two ranks of which everything is known, as another tool wrote them."""
    head = {"device": "cpu", "backend": "nccl", **fields}
    ranks = (
        zero_rank(rank, comm_ms=25 - 5 * rank, extra=extra, head=header(rank, 2, **head))
        for rank in (0, 1)
    )
    return [replace(trace, is_foreign=True) for trace in ranks]


def without_sizes() -> list[RankTrace]:
    made = known()
    for trace in made:
        for column in (trace.collectives.nbytes, trace.collectives.tensors):
            column[:] = 0
    return made


def without_groups() -> list[RankTrace]:
    return [replace(trace, groups={}) for trace in known()]


def without_durations() -> list[RankTrace]:
    return known(device="cuda")


def without_steps() -> list[RankTrace]:
    return [replace(trace, steps=[], spans=[]) for trace in known()]


WITHHELD: dict[str, tuple[Callable[[], list[RankTrace]], set[str]]] = {
    "sizes": (without_sizes, {"bytes", "bytes_per_step", "algbw", "busbw"}),
    "groups": (without_groups, {"group_size", "busbw"}),
    "durations": (without_durations, {"exposed_comm_ns", "compute_ns", "exposed_share", "algbw"}),
    "steps": (without_steps, {"mean_total_ns", "slowest_rank", "exposed_comm_ns", "exposed_share"}),
}
"""What is not known, and the figures that depend on it."""


def diagnosed(ranks: list[RankTrace]) -> Diagnosis:
    return diagnosis_of(summary(*ranks), {})


@pytest.mark.parametrize("what", WITHHELD)
def test_no_figure_that_depends_on_it_is_zero(what: str) -> None:
    make, dependent = WITHHELD[what]
    told = dict(figures(json.loads(to_json(diagnosed(known())))))
    rest = dict(figures(json.loads(to_json(diagnosed(make())))))
    zeros = {path for path, value in rest.items() if value == 0 and told.get(path)}
    assert not {path for path in zeros if what != "steps" or path[-1] not in COUNTS}
    missing = {path[-1] for path, value in rest.items() if value is None}
    shown = {path[-1] for path in rest}
    assert dependent & shown <= missing


@pytest.mark.parametrize("what", WITHHELD)
def test_no_rule_says_that_there_is_none(what: str) -> None:
    make, _ = WITHHELD[what]
    told = {finding.rule: finding for finding in diagnosed(known()).findings}
    for finding in diagnosed(make()).findings:
        assert finding.status is not Status.ERROR, finding
        if told[finding.rule].status in SAID and finding.status is Status.NOT_APPLICABLE:
            assert not claims_absence(finding), finding.summary
        if what == "sizes":
            assert not zero_bytes(finding), finding


@pytest.mark.parametrize("what", WITHHELD)
@pytest.mark.parametrize("form", ["text", "html"])
def test_no_page_shows_it_as_nothing(what: str, form: str) -> None:
    make, _ = WITHHELD[what]
    page = render(diagnosed(make()), form).decode()
    assert "No collective between two or more ranks" not in page
    if what == "sizes":
        assert " 0 B" not in page
        assert ">0 B<" not in page
        assert "0.00 MiB" not in page


def test_a_number_of_ranks_that_no_file_tells_is_null(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(kineto.document(kineto.steps(4, 60, 20), distributedInfo=None))
    found = diagnose(find_run([path]))
    assert json.loads(to_json(found))["run"]["world_size"] is None
    assert "1 present; world size unknown" in render(found, "html").decode()
    path.write_bytes(kineto.document(kineto.steps(4, 60, 20), world_size=2))
    assert diagnose(find_run([path])).run.world_size == 2


def test_a_profile_without_arguments_says_so() -> None:
    found = diagnosed([device.rank(kineto.steps(4, 60, 20), rank, 2) for rank in (0, 1)])
    assert all(row.bytes != 0 and row.group_size != 0 for row in found.communication)
    assert not [f for f in found.findings if f.status in SAID and zero_bytes(f)]


@pytest.mark.parametrize(
    "name", ["torchrec_sst_long_a2a_optimizer_3", "hta_trace_diff_control", "hta_cpu_only"]
)
def test_real_profiles_without_arguments_claim_no_absence(name: str) -> None:
    found = diagnose(find_run([traces(name)]))
    assert found.communication
    assert all(row.group_size != 0 for row in found.communication)
    assert not [f.summary for f in found.findings if claims_absence(f)]
    assert all(part.bytes for part in found.steps.rows if part.bytes is not None)


RAW = {
    "sizes": {
        "Steps",
        "Communication",
        "Traffic",
        "Placement",
        "WireDtypes",
        "WaitCauses",
        "Intent",
        "Arrivals",
    },
    "groups": {"Arrivals"},
    "durations": {"Communication", "Arrivals", "Phases"},
    "steps": {
        "Steps",
        "StepStarts",
        "Traffic",
        "Intent",
        "Overlap",
        "Flushes",
        "NewGroups",
    },
}
"""Aggregates that hold sums of what is known, beside what says how much is not.

Sizes: size class, `unsized`, or rules that need sizes. Durations: bandwidths are None where no time
is known, rows of collectives are left out, spans are shown by the sections. Steps: there are none.
"""


@pytest.mark.parametrize("what", WITHHELD)
def test_aggregates_hold_zero_only_where_something_says_that_it_is_unknown(what: str) -> None:
    make, _ = WITHHELD[what]
    told, rest = summary(*known()), summary(*make())
    zero = {
        kind.__name__
        for kind in AGGREGATES
        if any(not value and dict(sums(told[kind])).get(path) for path, value in sums(rest[kind]))
    }
    assert zero <= RAW[what]


def sums(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], float]]:
    """Yield each number of an aggregate, and the sum of each column, by where it is."""
    if is_dataclass(value):
        parts = [(field.name, getattr(value, field.name)) for field in fields(value)]
    elif isinstance(value, dict):
        parts = list(enumerate(value.values()))
    elif isinstance(value, list | tuple):
        parts = list(enumerate(value))
    else:
        parts = []
    for name, part in parts:
        yield from sums(part, (*path, name))
    if isinstance(value, np.ndarray) and value.dtype.kind in "iuf":
        yield path, float(np.abs(value).sum())
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield path, value


def figures(document: dict[str, Any]) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Yield each number of a document that is a figure, by where it is."""
    kept = {k: v for k, v in document.items() if k not in NOT_MEASURED | {"findings"}}
    yield from _leaves(kept, ())


def _leaves(value: Any, path: tuple[Any, ...]) -> Iterator[tuple[tuple[Any, ...], Any]]:
    if isinstance(value, dict):
        for key, one in value.items():
            yield from _leaves(one, (*path, key))
    elif isinstance(value, list):
        for place, one in enumerate(value):
            yield from _leaves(one, (*path, place))
    elif value is None or (isinstance(value, int | float) and not isinstance(value, bool)):
        yield path, value


def claims_absence(finding: Finding) -> bool:
    return finding.summary.startswith("No collective between two or more ranks")


def zero_bytes(finding: Finding) -> bool:
    """Say whether a finding shows no bytes where some were sent."""
    if finding.status not in SAID:
        return False
    kinds = [(table, place) for table in finding.evidence for place in range(len(table.columns))]
    cells = [
        row[place]
        for table, place in kinds
        if table.columns[place].kind == "bytes"
        for row in table.rows
    ]
    return 0 in cells or " 0 B" in f" {finding.summary}" or "0.00 MiB" in finding.summary
