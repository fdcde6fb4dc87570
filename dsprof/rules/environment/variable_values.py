"""How the libraries read the values of their variables."""

from __future__ import annotations

import re
from collections.abc import Iterable

from dsprof.rules.knowledge.releases import version

_NUMBER = re.compile(r"\s*(?P<sign>[+-]?)(?P<digits>0[xX][0-9a-fA-F]+|0[0-7]*|[1-9][0-9]*)")
_MOST_DIGITS = 30  # more than 64 bits in any base; C, too, stops at the largest number


def strtoll(value: str) -> tuple[int, str]:
    """Parse like C `strtoll(value, &rest, 0)`: return the number and what was not read."""
    match = _NUMBER.match(value)
    if match is None:
        return 0, value
    digits = match["digits"]
    if digits[:2].lower() == "0x":
        base = 16
    else:
        base = 8 if digits.startswith("0") else 10
    number = int(match["sign"] + digits[:_MOST_DIGITS], base)
    return max(-(2**63), min(number, 2**63 - 1)), value[match.end() :]


def is_true(value: str) -> bool:
    """Whether torch's c10d reads the value as true."""
    return value.lower() in ("1", "t", "true", "y", "yes")


def matches(test: str, value: str) -> bool:
    """Whether a value passes a test of `knowledge/settings.csv`; an unset variable has "".

    unset, set; zero, nonzero, =N: as NCCL reads integers; below N, where -1 means no limit;
    before N.N: of a release, a smaller one;
    is X, not X: the whole value against a regular expression, where `is` and `is-not` want a value
    and `not` is also true without one.
    """
    word, _, pattern = test.partition(" ")
    if word == "not":
        return re.fullmatch(pattern, value.strip()) is None
    if word == "unset" or not value.strip():
        return word == "unset" and not value.strip()
    if word in ("is", "is-not"):
        return (re.fullmatch(pattern, value.strip()) is None) == (word == "is-not")
    if word == "before":
        return () < version(value.strip()) < version(pattern)
    number = strtoll(value)[0]
    if word == "below":
        return 0 <= number < int(pattern)
    wanted = {"set": True, "zero": number == 0, "nonzero": number != 0}
    return wanted[word] if word in wanted else number == int(word.removeprefix("="))


def select(value: str, devices: Iterable[str], has_prefixes: bool = True) -> tuple[str, ...]:
    """Return the interfaces or adapters that a value selects, in their order.

    With prefixes "eth" means eth0, "=eth0" only that and "^eth" all others; a port
    after a colon is skipped.
    """
    exact = not has_prefixes
    excludes = has_prefixes and value.startswith("^")
    if excludes:
        value = value[1:]
    if has_prefixes and value.startswith("="):
        value, exact = value[1:], True
    names = [name.strip().split(":")[0] for name in value.split(",") if name.strip()]
    fits = {
        one: any(one == name if exact else one.startswith(name) for name in names)
        for one in devices
    }
    return tuple(one for one, is_named in fits.items() if is_named != excludes)
