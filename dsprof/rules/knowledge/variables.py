"""Variables of NCCL, RCCL, libfabric, torch and their plugins.

known_names.txt      names that a release reads; a `*` matches any characters
harmless_names.txt   names that no library reads but that images and build scripts set
launcher_names.txt   names that launchers set; `redaction.known_settings` writes their values
retired_names.csv    names that never existed or are read no more, and what to do instead
integer_variables.txt  names whose value NCCL or RCCL parses with strtoll
settings.csv         values that cost something, where, and what to do
settings_rules.csv   what the rules of these values are called, and why
accelerators.csv     accelerators by name: architecture and links
architectures.csv    which precisions the matrix units of an architecture multiply
links.csv            what links carry, as others measured it
agreement.csv        whether ranks must, should or may not need to agree; first match wins

UCX and UCC are left out: they warn about unused variables themselves.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from functools import cache

from dsprof.files.tables import lines, rows

_TABLES = "rules/knowledge/"


@cache
def known_names() -> frozenset[str]:
    """Return the names that some release reads, patterns included."""
    return frozenset(lines(_TABLES + "known_names.txt"))


@cache
def integer_variables() -> frozenset[str]:
    """Return the variables that NCCL or RCCL reads as an integer."""
    return frozenset(lines(_TABLES + "integer_variables.txt"))


@cache
def retired_names() -> dict[str, str]:
    """Return names that have no effect, each with what to do instead."""
    return {row["name"]: row["instead"] for row in rows(_TABLES + "retired_names.csv")}


def is_known(name: str) -> bool:
    """Whether a library reads `name`, or something harmless is known to set it."""
    return name in known_names() or any(fnmatchcase(name, one) for one in _patterns())


@cache
def agreement(name: str) -> str:
    """Return "must", "should" or "may": how far ranks need the same value; "" when not known."""
    known = rows(_TABLES + "agreement.csv")
    return next((row["agreement"] for row in known if fnmatchcase(name, row["name"])), "")


@cache
def _patterns() -> tuple[str, ...]:
    known = (name for name in known_names() if "*" in name)
    return (*lines(_TABLES + "harmless_names.txt"), *known)
