"""Buckets of one step over time: each fills until it is reduced."""

from __future__ import annotations

from dsprof.diagnosis.parts.communication import BucketFill, FillMoment
from dsprof.findings import formatting as fmt
from dsprof.reports.html.drawing import WIDTH, Drawing, Key, Shape, Word, gridlines, ticks

_PLOT_PX, _TOP_PX, _AXIS_PX = 90, 8, 20
_LEAST = 3  # reductions: fewer are read in the table
_CAUSES = {
    "full": Key("reduced when full", "series-1"),
    "end of backward": Key("reduced at the end of backward", "series-2"),
    "end of module": Key("reduced at the end of a module", "series-4"),
}
_OTHER = Key("reduced for another reason", "series-3")


def bucket_drawing(found: BucketFill | None) -> Drawing | None:
    """Draw fill against capacity by cause of the reduction; None for a few of them."""
    if found is None or len(found.flushes) < _LEAST:
        return None
    most = max(1.0, *map(_fill, found.flushes))
    across, bottom = WIDTH / max(found.duration_ns, 1), _TOP_PX + _PLOT_PX
    shapes = [
        Shape(
            f"M{one.since_ns * across:.1f} {bottom}"
            f"L{one.start_ns * across:.1f} {bottom - _fill(one) / most * _PLOT_PX:.1f}"
            f"V{bottom}z",
            _CAUSES.get(one.cause, _OTHER).colour,
            f"{one.cause}: {fmt.share(_fill(one))} of {fmt.count(one.capacity)} elements, "
            f"{fmt.size(one.bytes)}",
        )
        for one in found.flushes
    ]
    full = bottom - _PLOT_PX / most
    mean = sum(map(_fill, found.flushes)) / len(found.flushes)
    return Drawing(
        sentence=f"Fill of {fmt.plural(len(found.flushes), 'bucket')} of step {found.step} on rank "
        f"{found.rank} when they were reduced, {fmt.share(mean)} on average.",
        height_px=bottom + _AXIS_PX,
        shapes=(gridlines((full, bottom)), *shapes),
        words=tuple(
            Word(ns / max(found.duration_ns, 1) * 100, bottom + 15, fmt.duration(ns))
            for ns in ticks(found.duration_ns, 4)
            if ns < 0.97 * found.duration_ns
        ),
        lanes=(Word(100, full + 4, "capacity"), Word(100, bottom + 4, "empty")),
        keys=tuple(dict.fromkeys(_CAUSES.get(one.cause, _OTHER) for one in found.flushes)),
    )


def _fill(one: FillMoment) -> float:
    return one.elements / max(one.capacity, 1)
