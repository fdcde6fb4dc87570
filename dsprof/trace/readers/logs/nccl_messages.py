"""The messages of NCCL and RCCL; `nccl_messages.csv` holds one form a line.

A form has a text that every such message holds, which is looked for first, and an expression whose
groups make the value of the fact. The first form that fits counts.
"""

from __future__ import annotations

import re
from functools import cache
from typing import NamedTuple

from dsprof.files.redaction import redact_text
from dsprof.files.tables import rows
from dsprof.trace.rank_log import RankLog
from dsprof.trace.readers.logs.prefix import Said

_ALGORITHMS = ("Tree", "Ring", "CollNetDirect", "CollNetChain", "NVLS", "NVLSTree", "PAT")
_PROTOCOLS = ("LL", "LL128", "Simple")
"""NCCL's own numbers, of src/include/plugin/nccl_tuner.h."""

_LONGEST_VALUE, _LONGEST_READ = 200, 1000
_ADDRESS = re.compile(r":[0-9a-fA-F.:%\w]{1,99}<\d+>|\[\d+\](?=\S)")
_OWN_TO_A_LINE = re.compile(r"0x[0-9a-f]+|\b[0-9a-f]{8,}\b|(?<=nccl-)\w{6}\b")


class Form(NamedTuple):
    """One form of message."""

    label: str
    fact: str
    holds: str
    pattern: re.Pattern[str]
    value: str


class Place(NamedTuple):
    """Which rank of a communicator of how many a process is."""

    rank: int
    of: int


def form_of(message: str) -> tuple[Form, re.Match[str]] | None:
    """Return the form of a message and how it fits."""
    for form in _forms():
        if form.holds in message and (match := form.pattern.search(message)):
            return form, match
    return None


def understand(said: Said, log: RankLog) -> Place | None:
    """Add what a message says to the log of its process; return its place if it says that."""
    if said.level == "WARN":
        log.warn(warning(said))
    found = form_of(said.message)
    if found is None:
        return None
    form, match = found
    groups = {name: value or "" for name, value in match.groupdict().items()}
    if form.label.startswith("env_"):
        log.set(groups["name"][:100], _shown(groups["val"]))
    elif form.fact == "algorithm number":
        log.say("algorithm", _numbered(groups["algo"], groups["proto"]))
    elif form.fact:
        value = _ADDRESS.sub("", form.value.format_map(groups)).strip()
        log.say(form.fact, value[:_LONGEST_VALUE])
    if "nranks" in groups and len(groups["rank"]) < 8 and len(groups["nranks"]) < 8:
        return Place(int(groups["rank"]), int(groups["nranks"]))
    return None


def warning(said: Said) -> str:
    """Return what is warned of, without what is different in each line."""
    return _shown(_OWN_TO_A_LINE.sub("…", said.message))


def _shown(text: str) -> str:
    """Cut a text behind its credentials: a part of one would not be known as such."""
    if len(text) > _LONGEST_VALUE:
        text = redact_text(text[:_LONGEST_READ])
    return text[:_LONGEST_VALUE]


def _numbered(algorithm: str, protocol: str) -> str:
    names = (
        table[int(number)] if len(number) < 3 and int(number) < len(table) else number
        for number, table in ((algorithm, _ALGORITHMS), (protocol, _PROTOCOLS))
    )
    return "/".join(names)


@cache
def _forms() -> tuple[Form, ...]:
    return tuple(
        Form(row["label"], row["fact"], row["holds"], re.compile(row["pattern"]), row["value"])
        for row in rows("trace/readers/logs/nccl_messages.csv")
    )
