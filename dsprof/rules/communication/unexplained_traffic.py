"""unexplained-traffic: bytes on the wire that the configuration does not ask for, or lacks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from dsprof.analysis.aggregates.engines import Engines
from dsprof.analysis.aggregates.intent import Account, Intent
from dsprof.analysis.aggregates.run import Run
from dsprof.analysis.aggregates.steps import Steps
from dsprof.analysis.run.traffic_differences import NO_GRADIENT, Line, compare
from dsprof.analysis.summary import RunSummary
from dsprof.findings.finding import Column, Finding, Severity, Status, Table
from dsprof.findings.wording import capitalised, count, sentence, size
from dsprof.rules.rule import Rule, RuleMeta


@dataclass(frozen=True, slots=True)
class Thresholds:
    """When numbers differ."""

    tolerance: float = 0.01  # of the bytes that are asked for
    minor_share: float = 0.02  # of all bytes; less is not judged where nothing asks for it


class UnexplainedTraffic(Rule):
    """Compares what the configuration asks for with what went over the wire."""

    meta = RuleMeta(
        id="unexplained-traffic",
        title="Traffic matches the configuration",
        failing_title="Traffic does not match the configuration",
        why="The configuration determines how many bytes a step sends. More bytes are wasted; "
        "fewer mean that something was not synchronised.",
        category="communication",
        order=180,
        needs=(Engines, Intent, Run, Steps),
        needs_ranks=True,
        needs_sizes=True,
        needs_groups=True,
        min_steps=1,
    )
    thresholds = Thresholds()

    def check(self, run: RunSummary, thresholds: Thresholds) -> Iterable[Finding]:
        """Judge each kind of traffic of an engine, or of DDP and FSDP."""
        accounts = run[Intent].accounts
        silent = {
            number: reason
            for number, one in accounts.items()
            if (reason := _silent(number, one, has_ddp=run[Run].has_ddp))
        }
        doubts = {
            number: doubt
            for number, one in accounts.items()
            if number not in silent and (doubt := _doubt(run, one))
        }
        known = sorted(accounts.keys() - silent.keys() - doubts.keys())
        if known:
            yield self._judged(
                [line for number in known for line in _lines(run, number, thresholds)]
            )
        if doubts:
            words = "; ".join(dict.fromkeys(doubts.values()))
            yield self.meta.unknown(f"Unknown: {words}.")
        if silent and not known and not doubts:
            words = " ".join(dict.fromkeys(silent.values()))
            yield self.meta.not_applicable(words)

    def _judged(self, lines: list[Line]) -> Finding:
        strange = [line for line in lines if line.verdict == "unexplained"]
        expected = [line for line in lines if line.expected_bytes is not None]
        changed = [line for line in expected if line.verdict == "explained"]
        if strange:
            return self._unexplained(lines, strange)
        if changed:
            words = "; ".join(f"{line.what}: {line.cause}" for line in changed)
            return self.meta.finding(
                Status.INFO,
                f"{capitalised(words)}.",
                title="Traffic differs from the configuration for known reasons",
                action=_NOT_TRAINED if NO_GRADIENT in words else "",
                evidence=(_table(lines),),
                confidence="high",
            )
        return self.meta.finding(
            Status.PASS,
            f"{size(sum(line.nbytes for line in expected))} per step and rank, as the "
            "configuration asks for.",
            evidence=(_table(lines),),
            confidence="high",
        )

    def _unexplained(self, lines: list[Line], strange: list[Line]) -> Finding:
        words = "; ".join(_in_words(line) for line in strange)
        extra = sum(line.nbytes - (line.expected_bytes or (0.0, 0.0))[1] for line in strange)
        return self.meta.finding(
            Status.FAIL,
            f"Not what the configuration asks for: {words}.",
            severity=Severity.MEDIUM,
            cause=sentence("; ".join(dict.fromkeys(line.cause for line in strange if line.cause))),
            problem="Traffic does not match the configuration",
            fix="Find the call site under Communication",
            action="Find the call site in the communication table. Where the traffic is meant, "
            "no change is needed; please report what dsprof did not recognise.",
            evidence=(_table(lines),),
            saving_bytes_per_step=round(extra) if extra > 0 else None,
            confidence="medium",
        )


_NOT_TRAINED = (
    "Check that the loss depends on all parameters: those without a gradient are not trained. "
    "Reentrant activation checkpointing makes no gradients where no input requires one: use the "
    "non-reentrant variant, or call requires_grad_() on the input."
)


def _silent(number: int, account: Account, *, has_ddp: bool) -> str:
    """Return why nothing is asked for; "" if something may be."""
    if account.demands or account.obstacle or not account.progress.steps:
        return ""
    if not account.trains:
        return f"Engine {number} took no step, and communicates nothing in forward."
    if number < 0 and not has_ddp:
        return "Not applicable: no DeepSpeed engine, DDP or FSDP was recorded."
    if any(sent.kind == "gradients" for sent in account.sent):
        return "No gradients are reduced between ranks."
    return ""


def _doubt(run: RunSummary, account: Account) -> str:
    """Return why the comparison cannot be made; "" if it can."""
    if not account.progress.steps:
        return "no measured step was recorded in full detail"
    if run[Run].sampled_ranks:
        return "events are missing from the trace"
    if account.obstacle:
        return f"the traffic of {account.obstacle} is not modelled"
    if account.trains and not any(sent.kind == "gradients" for sent in account.sent):
        return "no recorded collective was recognised as a reduction of gradients"
    return ""


def _lines(run: RunSummary, number: int, thresholds: Thresholds) -> Iterator[Line]:
    """Yield the lines of one account, with the engine's number where there are several."""
    engines = run[Engines].engines
    engine = next((one for one in engines if one.engine == number), None)
    account = run[Intent].accounts[number]
    for line in compare(account, engine, thresholds.tolerance, thresholds.minor_share):
        several = len(run[Intent].accounts) > 1
        yield replace(line, what=f"{line.what} (engine {number})") if several else line


def _in_words(line: Line) -> str:
    ops = ", ".join(line.families) or "nothing"
    sent, *bounds = _sizes(line.nbytes, *(line.expected_bytes or ()))
    text = f"{line.what} ({ops}): {sent} per step"
    return f"{text}, where {' to '.join(dict.fromkeys(bounds))} are asked for" if bounds else text


def _table(lines: list[Line]) -> Table:
    return Table(
        columns=(
            Column("traffic"),
            Column("collective"),
            Column("asked for"),
            Column("calls asked for"),
            Column("calls", "count"),
            Column("bytes asked for, at least", "bytes"),
            Column("at most", "bytes"),
            Column("bytes sent", "bytes"),
            Column("verdict"),
            Column("cause"),
        ),
        rows=tuple(
            (
                line.what,
                ", ".join(line.families),
                line.why,
                _range(line.expected_calls),
                round(line.calls, 2),
                *(map(round, line.expected_bytes) if line.expected_bytes else (None, None)),
                round(line.nbytes),
                line.verdict,
                line.cause,
            )
            for line in lines
        ),
        caption="One rank and step; bytes are of the whole arrays",
    )


def _range(calls: tuple[float, float] | None) -> str:
    if calls is None:
        return ""
    return " to ".join(dict.fromkeys(map(count, calls)))


def _sizes(*sizes: float) -> list[str]:
    """Show sizes; in bytes where rounding would make different ones look alike."""
    words = [size(one) for one in sizes]
    is_exact = len(set(words)) == len(set(sizes))
    return words if is_exact else [f"{one:,.0f} bytes" for one in sizes]
