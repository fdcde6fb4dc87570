"""What is known of a stuck run: its traces and dumps, its live processes, py-spy, NCCL's RAS."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from dsprof.analysis.aggregates.endings import Endings
from dsprof.analysis.aggregates.flight_recorders import FlightRecorders
from dsprof.analysis.aggregates.shared_groups import SharedGroups
from dsprof.analysis.hang.kernel import with_kernel_messages
from dsprof.analysis.hang.model import HangReport, HangVerdict
from dsprof.analysis.hang.ras import ras_verdicts
from dsprof.analysis.hang.verdict import hang_of, report_of
from dsprof.analysis.summarise import summarise
from dsprof.analysis.summary import RunSummary
from dsprof.diagnosis.hang_evidence import (
    asked_kernel,
    asked_stacks,
    printed_by_kernels,
    printed_ras,
    printed_stacks,
    seen_now,
    with_stacks,
)
from dsprof.errors import TraceError
from dsprof.findings.wording import plural
from dsprof.rules.evidence.hang_remedies import remedy
from dsprof.trace.candidates import Stranger
from dsprof.trace.dumps.kept_states import keep_states_of
from dsprof.trace.life import is_here
from dsprof.trace.run import find_run
from dsprof.trace.schema import FILE_PATTERN
from dsprof.trace.selection import Selection

_ASKED = 4  # of the ranks to look at, so many are asked where they are
_UNREAD = HangVerdict(
    kind="unknown",
    sentence="An output of ncclras is not read: its JSON is incomplete, or of an unknown version. "
    "Query RAS again, or take its text.",
)


def hang_report(paths: Sequence[Path], epoch: int | None, *, is_live: bool) -> HangReport:
    """Say why a run is stuck; `is_live`: ask its processes on this machine, too.

    Raises:
        TraceError: no file can be read.
    """
    outputs = printed_ras(paths)
    read = [found for found in outputs if found is not None]
    of_ras = [*ras_verdicts(one for found in read for one in found)] if read else []
    unread = [_UNREAD] * (len(read) < len(outputs))
    try:
        report = _of_traces(paths, epoch, is_live=is_live)
    except TraceError:
        if of_ras:
            return HangReport(verdicts=[*of_ras, *unread])
        if unread:
            raise TraceError(_UNREAD.sentence) from None
        raise
    known = report.verdicts
    if any(read):
        known = [*(verdict for verdict in known if not verdict.is_healthy), *of_ras]
    return HangReport(verdicts=[*known, *unread], groups=report.groups)


def _of_traces(paths: Sequence[Path], epoch: int | None, *, is_live: bool) -> HangReport:
    files = find_run(paths, Selection(epoch=epoch))
    keep_states_of(files)
    run = summarise(files, [Endings, FlightRecorders, SharedGroups])
    endings = with_stacks(run[Endings], files, printed_stacks(paths))
    if is_live:
        endings = seen_now(endings, files)
    report = _judged(endings, run)
    if is_live:
        first = report.verdicts[0]
        shown = {*first.ranks[:_ASKED], *first.waiting[:1]}
        pids = [header.pid for header in files.headers if is_here(header) and header.rank in shown]
        endings = with_stacks(endings, files, asked_stacks(pids))
        report = _judged(endings, run)
    told = printed_by_kernels(paths, files) + (asked_kernel(files) if is_live else [])
    if told:
        known = with_kernel_messages(report.verdicts, endings, files.headers, told)
        report = HangReport(verdicts=known, groups=report.groups)
    return _with_skipped(report, files.strangers)


def _judged(endings: Endings, run: RunSummary) -> HangReport:
    """Return the verdicts with what to do; on what is not stuck there is nothing."""
    hang = hang_of(endings, run[FlightRecorders], shared=run[SharedGroups].rows)
    found = report_of(hang, endings)
    verdicts = [
        msgspec.structs.replace(verdict, remedy=remedy(verdict, hang, endings))
        if not verdict.is_healthy
        and (verdict.operation or verdict.waiting or verdict.kind == "frozen")
        else verdict
        for verdict in found.verdicts
    ]
    return HangReport(verdicts=verdicts, groups=found.groups)


def _with_skipped(report: HangReport, strangers: Sequence[Stranger]) -> HangReport:
    """Say which traces were skipped, if the others do not decide."""
    first, *others = report.verdicts
    skipped = [one for one in strangers if one.path.match(f"{FILE_PATTERN}*")]
    if first.kind != "unknown" or not skipped:
        return report
    more = f"; and {plural(len(skipped) - 1, 'more file')}" if len(skipped) > 1 else ""
    text = f"{first.cause.text} Skipped: {skipped[0].path}: {skipped[0].reason}{more}."
    cause = msgspec.structs.replace(first.cause, text=text.strip())
    first = msgspec.structs.replace(first, cause=cause)
    return HangReport(verdicts=[first, *others], groups=report.groups)
