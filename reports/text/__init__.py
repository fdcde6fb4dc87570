"""The diagnosis for a terminal: verdict, findings, step and communication in brief."""

from __future__ import annotations

import itertools
import json
import re
import textwrap
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator

from dsprof.diagnosis.model import Diagnosis
from dsprof.diagnosis.parts.communication import CommunicationRow
from dsprof.diagnosis.parts.environment import EnvironmentInfo
from dsprof.diagnosis.parts.logs import LoggedCallRow, LoggedFact
from dsprof.diagnosis.parts.steps import AnnotationRow, Steps
from dsprof.diagnosis.quality_lines import quality_lines
from dsprof.findings import brief
from dsprof.findings import formatting as fmt
from dsprof.findings.finding import Finding, Severity, Status
from dsprof.findings.wording import long_duration, reason
from dsprof.reports import content
from dsprof.reports.base import Renderer
from dsprof.reports.tables.communication import (
    group_name,
    operation,
    per_step,
    total_bytes,
)
from dsprof.reports.tables.environment import environment
from dsprof.reports.tables.epochs import epochs
from dsprof.reports.text.terminal import Page, in_text, printable

TOP_COMMUNICATION = 8
TOP_LOGGED = 16
TOP_ANNOTATIONS = 8

_MOST_NOTES = 3
"""Below the line on the data; the page lists all."""
_MOST_ALIKE = 8
"""Lines of one label on the quality of the data."""

_COLOURS = {
    Severity.CRITICAL: "1;31",
    Severity.HIGH: "31",
    Severity.MEDIUM: "33",
    Severity.LOW: "36",
}


def _sections(diagnosis: Diagnosis, page: Page) -> Iterator[list[str]]:
    quality = _quality(diagnosis, page) if diagnosis.run.source else []
    yield [*_verdict(diagnosis, page), *quality]
    typical = content.typical_step(diagnosis.steps)
    failed = content.with_status(diagnosis, Status.FAIL)
    if diagnosis.epochs.rows:
        yield _epochs(diagnosis, page)
    of = f" of epoch {diagnosis.run.epoch}" if diagnosis.run.epochs > 1 else ""
    if failed:
        yield [page.heading(f"Findings{of}")]
    for number, finding in enumerate(failed, 1):
        yield _finding(finding, number, page)
    notes = content.with_status(diagnosis, Status.INFO)
    if notes:
        heading = f"{page.heading('Worth knowing')}  what to do: dsprof explain RULE"
        yield [heading, *_notes(notes, page)]
    if typical.total_ns:
        about = page.wrap(diagnosis.utilisation.text, "  ") if diagnosis.utilisation.text else []
        yield [*_step(typical, diagnosis.steps, page), *about]
    if diagnosis.annotations:
        yield _annotations(diagnosis.annotations, page)
    if diagnosis.communication:
        yield _communication(diagnosis, page)
    if diagnosis.logged_calls:
        yield _logged_calls(diagnosis.logged_calls, page)
    if diagnosis.logged:
        yield _logged(diagnosis.logged, page)
    facts = list(_environment(diagnosis.environment, page))
    if facts and not typical.total_ns and not diagnosis.communication:
        yield [page.heading("Environment"), *facts]
    yield [page.heading("Checks"), *_checks(diagnosis, page)]


def _verdict(diagnosis: Diagnosis, page: Page) -> list[str]:
    first = page.wrap(diagnosis.headline.line or diagnosis.verdict or "No verdict.")
    others = (page.wrap(one.line, "  - ") for one in diagnosis.next_lines)
    facts = page.wrap(
        " | ".join(content.run_line(diagnosis.run, is_recorded=diagnosis.quality.is_recorded))
    )
    tiles = page.wrap(" | ".join(f"{one.label}: {one.value}" for one in diagnosis.tiles))
    lead = [page.paint(line, "1") for line in first]
    return [*lead, *itertools.chain.from_iterable(others), *facts, *tiles]


def _quality(diagnosis: Diagnosis, page: Page) -> list[str]:
    found = diagnosis.quality
    if found.line and not found.limits:
        notes = [*(f"skipped: {one}" for one in found.strangers), *found.notes]
        more = len(notes) - _MOST_NOTES
        shown = [*notes[:_MOST_NOTES], *([f"and {more:,} more"] if more > 0 else [])]
        wrapped = (page.wrap(one, "  - ") for one in shown)
        return [*page.wrap(f"Data: {found.line}"), *itertools.chain.from_iterable(wrapped)]
    remarks = [line for line in quality_lines(diagnosis) if line.level != "ok"]
    signs = {"flaw": "  ! ", "note": "  - "}
    lines = ["", page.heading("Data quality")]
    for label, of_label in itertools.groupby(remarks, lambda line: line.label):
        alike = list(of_label)
        for line in alike[:_MOST_ALIKE]:
            lines += page.wrap(f"{label}: {line.text}", signs[line.level])
        if (more := len(alike) - _MOST_ALIKE) > 0:
            lines += page.wrap(f"{label}: {more:,} more, named in the page and in JSON", "  - ")
    return lines


def _epochs(diagnosis: Diagnosis, page: Page) -> list[str]:
    found, run = diagnosis.epochs, diagnosis.run
    share, whole = fmt.share(found.lost_share), long_duration(found.whole_ns)
    lost = f"{share} of {whole} was lost without a new step"
    other = "for another one: dsprof report PATH --epoch N"
    return [
        f"{page.heading('Epochs')}  {lost}",
        *page.wrap(f"Epoch {run.epoch} of {run.epochs} is shown; {other}", "  "),
        *page.table(epochs(found)),
    ]


def _finding(finding: Finding, number: int, page: Page) -> list[str]:
    severity = finding.severity.value.upper()
    head = page.wrap(f"{number}. [{severity}] {finding.title}")
    lines = [page.paint(line, _COLOURS.get(finding.severity, "")) for line in head]
    labelled = (
        ("", finding.summary),
        ("Why: ", finding.cause),
        ("Do: ", finding.action),
        ("Saves: ", brief.saving(finding)),
        ("Rank: " if len(finding.ranks) == 1 else "Ranks: ", fmt.ranks(finding.ranks)),
    )
    for label, text in labelled:
        lines += page.wrap(text, "   ", label) if text else []
    for facet in finding.facets:
        lines += page.wrap(brief.first_sentence(facet.summary), "   ", "Also: ")
    if finding.config_patch:
        lines.append("   Merge into the DeepSpeed configuration:")
        # Escaped JSON: a patch may be copied, so no character in it is replaced.
        lines += textwrap.indent(json.dumps(finding.config_patch, indent=2), "     ").splitlines()
    confidence = f"confidence {finding.confidence}, " if finding.confidence else ""
    docs = f", explained by: dsprof explain {finding.rule}" if finding.docs else ""
    return lines + page.wrap(f"({confidence}rule {finding.rule}{docs})", "   ")


def _notes(notes: Iterable[Finding], page: Page) -> Iterator[str]:
    for note in notes:
        sentence = brief.first_sentence(note.summary)
        yield from page.wrap(f"{note.title} ({note.rule}). {sentence}", "  - ")


def _step(typical: content.StepBar, steps: Steps, page: Page) -> list[str]:
    bar_width = page.width - 50
    total = fmt.duration(typical.total_ns)
    lines = [f"{page.heading('Step')}  {total}, {printable(typical.label)}, mean over ranks"]
    if note := content.mean_note(steps):
        lines += page.wrap(note, "  ")
    if not typical.is_split:
        return [*lines, *page.wrap(steps.method or fmt.NOT_MEASURABLE, "  ", "Its parts: ")]
    for part in typical.parts:
        if part.ns is None:
            continue
        bar = "#" * round(min(part.share, 1) * bar_width)
        percent = fmt.share(part.share)
        lines.append(f"  {part.label:<22}{bar:<{bar_width}}{percent:>8}  {fmt.duration(part.ns)}")
    if unknown := [part.label for part in typical.parts if part.ns is None]:
        lines += page.wrap(f"{', '.join(unknown)}: {fmt.NOT_MEASURABLE}", "  ")
    if steps.estimated_share:
        share = fmt.share(steps.estimated_share)
        text = f"Exposed communication is an upper bound ({share} of it): DDP waits inside C++."
        lines += page.wrap(text, "  ")
    return lines


def _annotations(rows: list[AnnotationRow], page: Page) -> list[str]:
    lines = [f"{page.heading('Annotated spans')}  of one rank's step"]
    for row in rows[:TOP_ANNOTATIONS]:
        time = fmt.duration(per_step(row, row.duration_ns))
        numbers = f"  {fmt.count(row.calls_per_step):>7} {time:>10}"
        lines += page.entry(f"{numbers}  ", f"{row.name}{_longest_rank(row)}")
    return lines + page.more(len(rows) - TOP_ANNOTATIONS, "name")


def _longest_rank(row: AnnotationRow) -> str:
    """Name the rank that spends longest in a span, where ranks differ as shown."""
    times = {rank: fmt.duration(ns) for rank, ns in row.rank_ns.items()}
    rank = next(iter(times), "")
    return f" ({times[rank]} on rank {rank})" if len(set(times.values())) > 1 else ""


def _communication(diagnosis: Diagnosis, page: Page) -> list[str]:
    ordered = sorted(diagnosis.communication, key=lambda row: -(row.exposed_ns or 0))
    head = page.entry(
        f"  {'calls':>7} {'bytes':>10} {'exposed':>15}  ", "operation (group, ranks, size, phase)"
    )
    what = "step" if diagnosis.steps.measured_steps else "record"
    lines = [f"{page.heading('Communication')}  of one rank's {what}", *head]
    for row in ordered[:TOP_COMMUNICATION]:
        exposed = fmt.duration(per_step(row, row.exposed_ns))
        n_bytes = total_bytes(row)
        size = fmt.UNKNOWN if n_bytes is None else fmt.size(n_bytes)
        numbers = f"  {fmt.count(row.calls_per_step):>7} {size:>10}"
        lines += page.entry(f"{numbers} {exposed:>15}  ", _row_of(row))
    return lines + page.more(len(ordered) - TOP_COMMUNICATION, "row")


def _row_of(row: CommunicationRow) -> str:
    """Name a row by operation, request, group, ranks, size and phase; say what is not known."""
    ranks = fmt.plural(row.group_size, "rank") if row.group_size else f"ranks {fmt.UNKNOWN}"
    name = group_name(row)
    group = f"{name}, {ranks}" if name else f"group {fmt.UNKNOWN}"
    is_sized = total_bytes(row) is not None
    size = row.size_class if is_sized else f"size {fmt.UNKNOWN}"
    phase = f", {row.phase}" if row.phase else ""
    return f"{operation(row)} ({group}, {size}{phase})"


def _logged_calls(rows: list[LoggedCallRow], page: Page) -> list[str]:
    head = f"  {'calls':>7} {'message':>10} {'mean':>12}  operation"
    lines = [f"{page.heading('Communication as logged')}  by {rows[0].source}, not measured", head]
    for row in rows[:TOP_COMMUNICATION]:
        numbers = f"  {fmt.count(row.calls):>7} {fmt.size(row.message_bytes):>10}"
        what = f"{row.op} ({row.caller})" if row.caller else row.op
        lines += page.entry(f"{numbers} {fmt.duration(row.mean_ns):>12}  ", what)
    return lines + page.more(len(rows) - TOP_COMMUNICATION, "row")


def _logged(facts: list[LoggedFact], page: Page) -> list[str]:
    lines = [f"{page.heading('Logs')}  as reported by libraries"]
    for fact in facts[:TOP_LOGGED]:
        ranks = f" ({fmt.named_ranks(fact.ranks)})" if fact.ranks else ""
        lines += page.wrap(f"{fact.value}{ranks}", "  ", f"{fact.kind}: ")
    return lines + page.more(len(facts) - TOP_LOGGED, "fact")


def _environment(info: EnvironmentInfo, page: Page) -> Iterator[str]:
    for difference in info.differences:
        held = (
            f"{fmt.cell(value or 'not set', 'text')} ({fmt.named_ranks(r)})"
            for value, r in difference.values.items()
        )
        yield from page.wrap("; ".join(held), "  ", f"differs: {difference.name}: ")
    for table in environment(info):
        yield f"  {printable(table.caption)}"
        for cells, count in Counter(table.rows).items():
            name, value = (fmt.cell(cell, "text") for cell in cells)
            times = f" ({count} times)" if count > 1 else ""
            yield from page.wrap(f"{value}{times}", "    ", f"{printable(name)}: ")


def _checks(diagnosis: Diagnosis, page: Page) -> Iterator[str]:
    # Their names would fill a screen and need no action: the page and the JSON have them.
    counts = (
        (len(content.with_status(diagnosis, status)), words)
        for status, words in ((Status.PASS, "passed"), (Status.NOT_APPLICABLE, "not applicable"))
    )
    if counted := ", ".join(f"{count} {words}" for count, words in counts if count):
        yield f"  {counted}"
    for text in _untold(content.with_status(diagnosis, Status.UNKNOWN)):
        yield from page.wrap(text, "  ", "unknown: ")
    for finding in content.with_status(diagnosis, Status.ERROR):
        yield from page.wrap(f"{finding.rule}: {finding.summary}", "  ", "broke: ")


def _untold(findings: Iterable[Finding]) -> Iterator[str]:
    """Say why verdicts are unknown; rules that lack the same are counted, not named."""
    lacking: defaultdict[str, list[Finding]] = defaultdict(list)
    for finding in findings:
        lacking[reason(finding.summary).partition(";")[0].rstrip(".")].append(finding)
    for common, alike in lacking.items():
        reasons = {reason(finding.summary) for finding in alike}
        why = reasons.pop() if len(reasons) == 1 else f"{common}{_needed(reasons)}."
        rules = {finding.rule for finding in alike}
        yield f"{alike[0].rule if len(rules) == 1 else fmt.plural(len(rules), 'rule')}: {why}"


def _needed(reasons: Iterable[str]) -> str:
    """Say between which numbers lies what rules need; "" where a reason names none."""
    found = [re.search(r"; (\d+) (?:is|are) needed", text) for text in reasons]
    counts = sorted(int(match[1]) for match in found if match)
    return f"; {counts[0]} to {counts[-1]} are needed" if len(counts) == len(found) else ""


RENDERER: Renderer[Diagnosis] = in_text(_sections)
