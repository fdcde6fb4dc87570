"""Bus bandwidth of collectives by their size, beside what is expected."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from dsprof.diagnosis.parts.communication import ExpectedCurve, TransferRow
from dsprof.findings import formatting as fmt
from dsprof.reports.html.drawing import SERIES, WIDTH, Drawing, Key, Shape, Word, gridlines, line

_PLOT_PX, _TOP_PX, _AXIS_PX, _SIDE = 140, 14, 20, 40
_LEAST = 3  # sizes: fewer are read in the table


def bandwidth_drawing(
    transfers: Sequence[TransferRow], curves: Sequence[ExpectedCurve] = ()
) -> Drawing | None:
    """Draw a line for each operation and group, on logarithmic axes; None for a few sizes."""
    rows = [row for row in transfers if row.bytes > 0 and row.busbw > 0]
    if len(rows) < _LEAST:
        return None
    lines: dict[str, list[TransferRow]] = defaultdict(list)
    for row in sorted(rows, key=lambda row: (row.op, row.group, row.bytes)):
        lines[_name(row)].append(row)
    expected = [curve for curve in curves if curve.bytes and _name(curve) in lines]
    rates = [row.busbw for row in rows] + [rate for curve in expected for rate in curve.busbw]
    axes = _Axes([float(row.bytes) for row in rows], rates)
    colours = {name: f"series-{n % SERIES + 1}" for n, name in enumerate(lines)}
    fastest = max(rows, key=lambda row: row.busbw)
    sources = dict.fromkeys(curve.source for curve in expected)
    return Drawing(
        sentence=f"Bus bandwidth by size of a collective, at most {fmt.rate(fastest.busbw)} at "
        f"{fmt.size(fastest.bytes)}.",
        height_px=_TOP_PX + _PLOT_PX + _AXIS_PX,
        shapes=(
            gridlines(map(axes.y, axes.rates())),
            *(_expected(curve, axes, colours[_name(curve)]) for curve in expected),
            *(_measured(alike, axes, colours[name]) for name, alike in lines.items()),
        ),
        words=(*_points(lines, colours, axes), *axes.sizes()),
        lanes=tuple(Word(100, axes.y(rate) + 4, fmt.rate(rate)) for rate in axes.rates()),
        keys=(
            *(Key(name, colour) for name, colour in colours.items()),
            *([Key(f"expected: {', '.join(sources)}", "soft", "dashed")] if sources else []),
        ),
    )


def _name(row: TransferRow | ExpectedCurve) -> str:
    return f"{row.op} ({row.group}, {fmt.plural(row.group_size, 'rank')})"


class _Axes:
    """Places of sizes and rates, from the lowest to the highest decade."""

    def __init__(self, sizes: Sequence[float], rates: Sequence[float]) -> None:
        self._sizes = math.log2(min(sizes)), max(math.log2(max(sizes)), math.log2(min(sizes)) + 1)
        self._rates = math.floor(math.log10(min(rates))), math.ceil(math.log10(max(rates) * 1.01))

    def x(self, nbytes: float) -> float:
        low, high = self._sizes
        return _SIDE + (math.log2(nbytes) - low) / (high - low) * (WIDTH - 2 * _SIDE)

    def y(self, rate: float) -> float:
        low, high = self._rates
        return _TOP_PX + (high - math.log10(rate)) / (high - low) * _PLOT_PX

    def rates(self) -> Iterator[float]:
        low, high = self._rates
        stride = -(-(high - low) // 5)
        return (10.0**power for power in range(low, high + 1, stride))

    def sizes(self) -> Iterator[Word]:
        low, high = math.ceil(self._sizes[0]), math.floor(self._sizes[1])
        stride = max(-(-(high - low) // 5), 1)
        for power in range(low, high + 1, stride):
            yield Word(self.x(2.0**power) / 10, _TOP_PX + _PLOT_PX + 15, fmt.size(2.0**power))


def _measured(alike: Sequence[TransferRow], axes: _Axes, colour: str) -> Shape:
    return Shape(line((axes.x(r.bytes), axes.y(r.busbw)) for r in alike), colour, kind="line")


def _expected(curve: ExpectedCurve, axes: _Axes, colour: str) -> Shape:
    pairs = zip(curve.bytes, curve.busbw, strict=True)
    path = line((axes.x(size), axes.y(rate)) for size, rate in pairs)
    return Shape(path, colour, f"{_name(curve)}, expected: {curve.source}", "dashed")


def _points(
    lines: Mapping[str, Sequence[TransferRow]], colours: Mapping[str, str], axes: _Axes
) -> Iterator[Word]:
    """Mark what was measured by a dot: lines may be points."""
    for name, row in ((name, row) for name, alike in lines.items() for row in alike):
        x = axes.x(row.bytes) / 10
        yield Word(x, axes.y(row.busbw) + 4, "\N{BLACK CIRCLE}", colour=colours[name])
