"""A run for the terminal: lines of words and colours, for a width and a height."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from statistics import fmean

import numpy as np

from dsprof.findings import brief
from dsprof.findings import formatting as fmt
from dsprof.findings.finding import Severity
from dsprof.findings.wording import capitalised, long_duration, named, shortened
from dsprof.live.now import LONG_NS, RankNow, RunNow, Strip

Span = tuple[str, str]
"""A text, and the style that rich gives it."""

Line = list[Span]

_LEVELS = "·░▒▓█"
_HEAT = ("grey50", "blue", "cyan", "yellow", "bright_red")
"""Readers see levels and parts of a step by their signs, too: colour does not suffice."""

_STYLES = {
    Severity.CRITICAL: "bold bright_red",
    Severity.HIGH: "bright_red",
    Severity.MEDIUM: "yellow",
    Severity.LOW: "cyan",
}
_PARTS = {"compute": ("█", "blue"), "exposed_comm": ("▓", "bright_red"), "copies": ("▒", "cyan")}
_PARTS |= {"idle": ("░", "grey50"), "other": ("·", "grey50")}
_LOST = {
    "gone": "{who} {is_} gone: killed, or crashed without an exception.",
    "silent": "{who} {is_} silent: killed, stopped, or unable to write.",
}
_REMOVED = (
    "The traces were moved or removed while the run goes on: what it does is unknown. Give the "
    "folder in which they are now, and leave the folder of traces in place until a job ends."
)
_NAMES = {"exposed_comm": "exposed"}
_COLUMNS = 44
"""Characters of a line of a rank beside the strip and what the rank does."""
_FEW_RANKS = 8
_LEAST_CELLS, _MOST_CELLS = 8, 60


@dataclass
class Chosen:
    """Choices made by keys."""

    rank: int | None = None  # its number, as of a step
    finding: int | None = None  # place among those that are shown
    step: int | None = None

    def place(self, now: RunNow) -> int:
        """Return the place of the rank among `ordered`; the first until one is chosen."""
        return next((n for n, one in enumerate(ordered(now)) if one.rank == self.rank), 0)

    def move_rank(self, by: int, now: RunNow) -> None:
        """Choose a rank below or above."""
        place = min(max(self.place(now) + by, 0), len(now.ranks) - 1)
        self.rank = ordered(now)[place].rank

    def move_step(self, by: int, strip: Strip) -> None:
        """Choose a step after or before; at first the newest."""
        if strip.steps:
            place = len(strip.steps) - 1 if self.step is None else place_of(self.step, strip) + by
            self.step = strip.steps[min(max(place, 0), len(strip.steps) - 1)]


def ordered(now: RunNow) -> list[RankNow]:
    """Return the ranks as they are shown: of many, those to look at come first."""
    if len(now.ranks) <= _FEW_RANKS:
        return now.ranks
    return sorted(now.ranks, key=lambda rank: not rank.stands_out(now.straggler))


def place_of(step: int, strip: Strip) -> int:
    """Return the place of a step, or of the next one that is there."""
    return min(bisect_left(strip.steps, step), len(strip.steps) - 1)


def screen(now: RunNow, width: int, height: int, chosen: Chosen) -> list[Line]:
    """Return at most `height` lines; ranks that do not fit scroll with the one that is chosen."""
    if now.is_removed:  # all figures are old
        told = [_title(now), *_paragraph(_REMOVED, "bold bright_red", width)]
        return [_cut(line, width) for line in told[:height]]
    top = [_title(now), *_lost(now, width), *_step(now, width), *_stuck(now, width), []]
    below = [*_findings(now, width, chosen)]
    at_step = [*_chosen_step(now, width, chosen)]
    room = max(height - len(top) - len(at_step) - len(below) - 2, 1)
    left = len(now.ranks) - room
    more: Line = [(f"and {fmt.plural(left, 'more rank')}", "")] if left > 0 else []
    lines = [*top, _rank_head(), *_ranks(now, width, room, chosen), *at_step, more, *below]
    return [_cut(line, width) for line in lines[:height]]


def as_text(lines: Iterable[Line]) -> str:
    """Return lines without styles."""
    return "\n".join("".join(text for text, _ in line).rstrip() for line in lines) + "\n"


def _title(now: RunNow) -> Line:
    present = fmt.plural(now.world_size, "rank")
    if len(now.ranks) < now.world_size:
        present = f"{len(now.ranks)} of {present}"
    hosts = {rank.host for rank in now.ranks}
    where = next(iter(hosts)) if len(hosts) == 1 else fmt.plural(len(hosts), "host")
    epoch = f"epoch {now.epoch}, " if now.epoch > 1 else ""
    since = _moment(now.started, now.looked)
    state = _state(now)
    return [
        ("dsprof ", "bold"),
        (f"{present} on {shortened(where, 24)}, started {since}, {epoch}", ""),
        (state, "green" if state == "running" else "bold"),
    ]


def _state(now: RunNow) -> str:
    if now.is_removed:
        return "traces removed"
    states = {rank.state for rank in now.ranks}
    if not now.is_over:
        return "running" if "running" in states else "no sign of life"
    return "killed" if "gone" in states else "crashed" if "crashed" in states else "ended"


def _moment(moment: str, looked: str) -> str:
    """Return the time of the day, with the day where that is not today."""
    day = "" if moment[:10] == looked[:10] or not looked else f"{moment[:10]} "
    return f"{day}{moment[11:19]} UTC"


def _lost(now: RunNow, width: int) -> Iterator[Line]:
    """Name ranks without a sign of life, and say when the last one was."""
    for state, words in _LOST.items():
        lost = [rank for rank in now.ranks if rank.state == state]
        if not lost:
            continue
        who = named([rank.rank for rank in lost]) if len(lost) < len(now.ranks) else "all ranks"
        silent_ns = min((one.silent_ns for one in lost if one.silent_ns is not None), default=None)
        last = ""
        if silent_ns is not None and now.looked:
            moment = datetime.fromisoformat(now.looked) - timedelta(microseconds=silent_ns / 1e3)
            seen = _moment(moment.isoformat(timespec="seconds"), now.looked)
            last = f" Last sign of life: {seen}, {long_duration(silent_ns)} ago."
        text = words.format(who=capitalised(who), is_="is" if len(lost) == 1 else "are")
        yield from _paragraph(text + last, "bold bright_red", width)


def _step(now: RunNow, width: int) -> Iterator[Line]:
    if now.step is None or now.step_ns is None:
        yield [("No step has ended yet.", "")]
        return
    pace = "" if now.steps_per_s is None else f", {now.steps_per_s:.3g} steps/s"
    trend = _trend(now.trend)
    yield [
        (f"Step {now.step:,}", "bold"),
        (f"  {fmt.duration(now.step_ns)} per step{pace}{trend}", ""),
    ]
    if now.parts is None:
        return
    known = {name: getattr(now.parts, f"{name}_ns") for name in _PARTS}
    whole_ns = max(now.parts.total_ns, 1)
    shares = {name: ns / whole_ns for name, ns in known.items() if ns is not None}
    bar, words = list[Span](), list[Span]()
    for name, share in shares.items():
        sign, style = _PARTS[name]
        bar.append((sign * round(share * width), style))
        words += [(sign, style), (f" {_NAMES.get(name, name)} {fmt.share(share)}  ", "")]
    yield bar
    yield words


def _trend(trend: float | None) -> str:
    if trend is None:
        return ""
    if abs(trend) < 0.02:
        return ", steady"
    return f", {fmt.share(abs(trend))} {'slower' if trend > 0 else 'faster'} than before"


def _stuck(now: RunNow, width: int) -> Iterator[Line]:
    if now.straggler is not None and now.straggler_ns is not None:
        delay = f"by {fmt.duration(now.straggler_ns)} per step"
        yield [(f"In recent steps rank {now.straggler} delays the others {delay}.", "yellow")]
    if now.stuck:
        yield from _paragraph(now.stuck, "bold bright_red", width)


def _rank_head() -> Line:
    head = f"{'rank':>5} {'step':>8} {'time':>8} {'exposed':>7} {'memory':>8}  "
    return [(head, "bold"), (f"busy time of steps: {_LEVELS[0]} short {_LEVELS[-1]} long", "bold")]


def _ranks(now: RunNow, width: int, room: int, chosen: Chosen) -> Iterator[Line]:
    ranks, place = ordered(now), chosen.place(now)
    first = min(max(place - room // 2, 0), max(len(ranks) - room, 0))
    seen = ranks[first : first + room]
    doing = max((len(_doing(rank)) for rank in seen), default=0)
    heat = _heat(now, max(width - _COLUMNS - doing, _LEAST_CELLS), chosen)
    for rank in seen:
        style = "reverse" if rank is ranks[place] else ""
        share = (
            rank.exposed_ns / rank.step_ns if rank.exposed_ns is not None and rank.step_ns else None
        )
        exposed = "" if share is None else fmt.share(share)
        length = "" if rank.step_ns is None else fmt.duration(rank.step_ns)
        step = "" if rank.step is None else f"{rank.step:,}"
        held = rank.rss_bytes if rank.reserved_bytes is None else rank.reserved_bytes
        memory = "" if held is None else fmt.size(held)
        yield [
            (f"{rank.rank:>5} {step:>8} {length:>8} {exposed:>7} {memory:>8}  ", style),
            *heat.get(rank.rank, []),
            (f"  {_doing(rank)}", "yellow" if rank.stands_out(None) else ""),
        ]


def _chosen_step(now: RunNow, width: int, chosen: Chosen) -> Iterator[Line]:
    """Show the time of one step of the chosen rank."""
    strip, rank = now.strip, ordered(now)[chosen.place(now)]
    if chosen.step is None or rank.rank not in strip.ranks or not strip.steps:
        return
    place, row = place_of(chosen.step, strip), strip.ranks.index(rank.rank)
    total_ns, busy_ns = strip.total_ns[row][place], strip.busy_ns[row][place]
    all_ns = [one[place] for one in strip.total_ns if one[place] >= 0]
    where = f" on {rank.host}" if len({one.host for one in now.ranks}) > 1 else ""
    text = f"Rank {rank.rank}{where}, step {strip.steps[place]:,}: "
    if total_ns < 0:
        text += "not recorded"
    else:
        text += f"{fmt.duration(total_ns)}, {fmt.duration(total_ns - busy_ns)} of it exposed "
        text += f"(mean of ranks {fmt.duration(fmean(all_ns))})"
    yield from _paragraph(text, "bold", width)


def _doing(rank: RankNow) -> str:
    flying = rank.in_flight
    state = "" if rank.state == "running" else rank.state
    if flying is None or not (flying.age_ns > LONG_NS or state):
        return state
    group = f" of {flying.group}" if flying.group else ""
    return f"{state or fmt.duration(flying.age_ns)} in {flying.op}{group}"


def _heat(now: RunNow, width: int, chosen: Chosen) -> dict[int, Line]:
    """Return a cell for each of the newest steps: how long a rank was busy, against the median."""
    busy = np.array(now.strip.busy_ns, np.int64)
    if not busy.size or not width:
        return {}
    known = busy >= 0
    middle = float(np.median(busy[known])) if known.any() else 0.0
    place = None if chosen.step is None else place_of(chosen.step, now.strip)
    width, count = min(width, _MOST_CELLS), busy.shape[1]
    first = max(count - width, 0)
    first = first if place is None else min(first, place)  # it is in sight
    cells = slice(first, first + width)
    level = np.searchsorted([0.8, 1.05, 1.25, 1.6], busy[:, cells] / max(middle, 1))
    chosen_rank, found = ordered(now)[chosen.place(now)].rank, {}
    for row, rank in enumerate(now.strip.ranks):
        line: Line = [
            (_LEVELS[cell], _HEAT[cell]) if is_known else (" ", "")
            for cell, is_known in zip(level[row], known[row, cells], strict=True)
        ]
        if place is not None and rank == chosen_rank:
            line[place - first] = (line[place - first][0], "reverse")
        found[rank] = line
    return found


def _findings(now: RunNow, width: int, chosen: Chosen) -> Iterator[Line]:
    if now.judge_failure:
        yield from _paragraph(f"The rules cannot be applied: {now.judge_failure}", "yellow", width)
    elif now.judged_steps is None:
        yield [("Findings: not judged yet.", "")]
    if now.judged_steps is None:
        return
    count = fmt.plural(len(now.findings), "finding") if now.findings else "No findings"
    waiting = ""
    if now.waiting_rules:
        verb = "waits" if len(now.waiting_rules) == 1 else "wait"
        waiting = f"; {fmt.plural(len(now.waiting_rules), 'rule')} {verb} for the end of the run"
    yield [(f"{count} after {fmt.plural(now.judged_steps, 'step')}{waiting}", "bold")]
    for place, finding in enumerate(now.findings):
        is_chosen = place == chosen.finding
        mark = f"{finding.severity.value:<9}"
        first, *rest = _wrapped(brief.line(finding), width - len(mark)) or [""]
        style = "reverse" if is_chosen else ""
        yield [(mark, _STYLES.get(finding.severity, "")), (first, style)]
        yield from ([(" " * len(mark), ""), (line, style)] for line in rest)
        if is_chosen:
            more = " ".join(filter(None, (finding.summary, finding.cause, finding.action)))
            yield from ([(f"  {line}", "")] for line in _wrapped(more, width - 2))


def _paragraph(text: str, style: str, width: int) -> Iterator[Line]:
    return ([(line, style)] for line in _wrapped(text, width))


def _wrapped(text: str, width: int) -> list[str]:
    import textwrap

    return textwrap.wrap(" ".join(text.split()), max(width, 20))


def _cut(line: Sequence[Span], width: int) -> Line:
    cut: Line = []
    for text, style in line:
        shown = "".join(
            char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text
        )
        cut.append((shown[:width], style))
        width -= min(len(shown), width)
    return cut
