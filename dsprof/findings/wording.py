"""Words that several rules use for the same thing."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from functools import lru_cache

from dsprof.files.redaction import redact_text

_MOST_NAMED = 12

FILL_HOSTS = (
    "Let the launcher fill a host before the next (mpirun --map-by slot, srun --distribution=block,"
    " one torchrun per host)."
)


def listed(ranks: Iterable[int], at_most: int = _MOST_NAMED) -> str:
    """Name ranks as ranges, `0-3, 7`; beyond `at_most` ranges the rest is counted."""
    runs: list[list[int]] = []
    for rank in sorted(set(ranks)):
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    words = [str(a) if a == b else f"{a}-{b}" for a, b in runs[:at_most]]
    left = sum(b - a + 1 for a, b in runs[at_most:])
    return ", ".join(words) + (f" and {left:,} more" if left else "")


def named(ranks: Iterable[int]) -> str:
    """Name ranks as what they are: `rank 3`, `ranks 0-3, 7`."""
    members = set(ranks)
    return f"rank{'' if len(members) == 1 else 's'} {listed(members)}"


def named_if_known(ranks: Collection[int]) -> str:
    """Name ranks as what they are; without any, one that is unknown."""
    return named(ranks) if ranks else "a rank"


def ranks_do(ranks: Sequence[int], verb: str) -> str:
    """Begin a sentence on ranks: `Rank 3 delays`, `Ranks 3, 7 delay`."""
    who = named(ranks)
    return f"{capitalised(who)} {verb}{'s' if len(ranks) == 1 else ''}"


def broken_off(ranks: Collection[int]) -> str:
    """Say of ranks that were killed, crashed or still run that their records lack the end."""
    is_one = len(ranks) == 1
    return f"the record{'' if is_one else 's'} of {named(ranks)} break{'s' if is_one else ''} off"


def shortened(text: str, at_most: int = 60) -> str:
    """Cut what somebody wrote to a length that a sentence bears, and say how long it is.

    Credentials are removed first: a part of one would not be known as such.
    """
    if len(text) <= at_most:
        return text
    text = redact_text(text)
    return text if len(text) <= at_most else f"{text[:at_most]}… ({len(text):,} characters)"


def remarks(rows: Iterable[tuple[str, str]]) -> str:
    """Join names and remarks to a sentence, the first twelve: the evidence holds all."""
    said = [f"{name}: {remark}" for name, remark in rows]
    if len(said) > _MOST_NAMED:
        said[_MOST_NAMED:] = [f"and {len(said) - _MOST_NAMED:,} more"]
    return sentence("; ".join(said))


def some(names: Sequence[str], at_most: int = 3) -> str:
    """Name the first `at_most`, and count the others: `a, b, c and 4 more`."""
    left = len(names) - at_most
    return ", ".join(names[:at_most]) + (f" and {left:,} more" if left > 0 else "")


def sentence(text: str) -> str:
    """End a sentence with a full stop; a question has its mark, and no words are no sentence."""
    return text if not text or text.endswith("?") else f"{text}."


def capitalised(text: str) -> str:
    """Begin a sentence with these words."""
    return text[:1].upper() + text[1:]


def reason(summary: str) -> str:
    """Return why a verdict is unknown, for a line that begins with that word."""
    rest = summary.removeprefix("Unknown").lstrip(":. ") or summary
    first = rest.partition(" ")[0]
    return capitalised(rest) if first.isalpha() and first.islower() else rest


Units = Sequence[tuple[float, str]]
"""How large units are, and what they are called, the largest first."""

BINARY_UNITS: Units = (
    (2**40, "TiB"),
    (2**30, "GiB"),
    (2**20, "MiB"),
    (2**10, "KiB"),
    (1, "B"),
)

TIME_UNITS: Units = ((1e9, "s"), (1e6, "ms"), (1e3, "µs"), (1, "ns"))

RATE_UNITS: Units = ((1e9, "GB/s"), (1e6, "MB/s"), (1e3, "kB/s"), (1, "B/s"))


@lru_cache(1 << 10)  # thousands of collectives have a few sizes
def size(nbytes: float) -> str:
    """Show bytes in the binary unit that keeps about three figures: `1.50 MiB`."""
    return scaled(nbytes, BINARY_UNITS)


def duration(ns: float) -> str:
    """Show nanoseconds in the unit that keeps about three figures: `2.31 s`."""
    return scaled(ns, TIME_UNITS)


_LONG_UNITS: Units = ((3600e9, "h"), (60e9, "min"))


def long_duration(ns: float) -> str:
    """Show the time of a run: `3.20 h`, `41.0 min`, below two minutes `83.0 s`."""
    return scaled(ns, _LONG_UNITS) if ns >= 2 * 60e9 else duration(ns)


def rate(bytes_per_s: float) -> str:
    """Show bytes per second in decimal units, as nccl-tests and links are rated: `96.2 GB/s`."""
    return scaled(bytes_per_s, RATE_UNITS)


def scaled(value: float, units: Units) -> str:
    """Show a value in the largest unit that it reaches as shown, one of the smallest as it is."""
    smallest = len(units) - 1
    at = next((at for at, (scale, _) in enumerate(units) if abs(value) >= scale), smallest)
    if at and _rounded(abs(value) / units[at][0]) * units[at][0] >= units[at - 1][0]:
        at -= 1  # 999.6 ms are 1.00 s
    scale, unit = units[at]
    number = value / scale
    is_whole = scale == 1 and float(number).is_integer()
    return f"{f'{number:,.0f}' if is_whole else figures(number)} {unit}"


def _rounded(value: float) -> float:
    """Return the number that `figures` shows."""
    return float(figures(value).replace(",", ""))


def figures(value: float) -> str:
    """Show a number with about three figures."""
    size = abs(float(f"{value:.3g}"))
    if 0 < size < 0.1:
        return f"{value:.2g}"
    return f"{value:,.{0 if size >= 100 else 1 if size >= 10 else 2}f}"


_ALL = 100 - 1e-6
"""Per cent: sums of shares are as exact."""


def percent(part: float, sign: str = "-") -> str:
    """Show a part of one: `6.6 %`, without decimals from 10 % on; `sign` as in a format.

    Only nothing is `0 %`, and less than all is not `100 %`.
    """
    value = part * 100
    size = abs(value)
    if 0 < size < 0.05:
        return "< 0.1 %"
    if 99.95 <= value < _ALL and sign == "-":
        return "> 99.9 %"
    if 99.95 <= -value < _ALL:
        return "\N{MINUS SIGN}99.9 %"
    number = f"{value:{sign},.{0 if 9.95 <= size < 99.5 or size >= _ALL else 1}f}"
    return f"{number.removesuffix('.0')} %".replace("-", "\N{MINUS SIGN}")


def count(number: float) -> str:
    """Say how many: whole numbers in full, others with about three figures."""
    return f"{number:,.0f}" if float(number).is_integer() else figures(number)


def plural(number: float, noun: str, several: str = "") -> str:
    """Say how many of what: `1 rank`, `2 ranks`, `0.50 ranks`."""
    return f"{count(number)} {noun if number == 1 else several or f'{noun}s'}"
