"""A finding in a few words: what to set, what that saves, and all of it in one line."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from dsprof.findings.finding import Finding
from dsprof.findings.wording import sentence, size

_SENTENCE_END = re.compile(r"(?<=[.!?]) (?=[A-Z`\"'])")
_ROUND = 1_000_000
"""A number of at least this size with one digit is written as users write it: 5e7."""
_LONG_MS = 10_000
_FEW_WORDS = 60
"""Characters: what is longer does not fit a headline."""
_STEP_END = re.compile(r"[;:] | \(|, (?=and |or |called |so |with )")
_CLAUSE_END = re.compile(
    # A verb may follow a parenthesis.
    r"[;:] | \((?=[^()]*\)(?:[;:,.]|$))|, (?=and |or |called |so |with )"
)
_DASH = "\N{EN DASH}"


def settings(patch: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys that a patch sets, dotted: `bf16.enabled`.

    Those of `zero_optimization` are known by their own names.
    """
    found: dict[str, Any] = {}
    for key, value in patch.items():
        if isinstance(value, Mapping):
            prefix = "" if key == "zero_optimization" else f"{key}."
            found |= {f"{prefix}{name}": one for name, one in settings(value).items()}
        else:
            found[key] = value
    return found


def imperative(patch: Mapping[str, Any]) -> str:
    """Say what a patch does: "Set `overlap_comm` to true"."""
    first, *others = (f"`{key}` to {_value(value)}" for key, value in settings(patch).items())
    words = f"Set {', '.join([first, *others[:-1]])} and {others[-1]}" if others else f"Set {first}"
    return words if len(words) <= _FEW_WORDS else f"Set {first}{_more(others)}"


def problem(finding: Finding) -> str:
    """Say in a few words what is wrong: what the rule says, else its summary if that is short."""
    return finding.problem or _few_words(finding.summary, _CLAUSE_END) or finding.title


def fix(finding: Finding) -> str:
    """Say in a few words what to do: what the rule says, else its patch or its first sentence."""
    if finding.fix or not (finding.config_patch or finding.action):
        return finding.fix
    if finding.config_patch:
        return imperative(finding.config_patch)
    return _few_words(finding.action, _STEP_END) or _STEP_END.split(finding.action)[0].rstrip(".")


def _few_words(text: str, ending: re.Pattern[str]) -> str:
    """Return as many clauses of the first sentence as fit a headline; "" if not even one does.

    A single word before a colon is only what the sentence is about.
    """
    first = first_sentence(text).rstrip(".")
    ends = (len(first), *(end.start() for end in ending.finditer(first)))
    few = first[: max((end for end in ends if end <= _FEW_WORDS), default=0)]
    return few if " " in few else ""


def first_sentence(text: str) -> str:
    """Return the first sentence of a text."""
    return _SENTENCE_END.split(text, maxsplit=1)[0]


def saving(finding: Finding) -> str:
    """Say what the fix saves: "30 ms per step, 8 %", both as ranges; "" where that is unknown."""
    if finding.saving_ms_per_step is not None:
        low, high = finding.saving_ms_per_step
        is_long = round(high) >= _LONG_MS
        scale, unit = (1e3, "s") if is_long else (1, "ms")
        words = [f"{between(low / scale, high / scale, unit)} per step"]
        if finding.saving_share is not None:
            least, most = (100 * share for share in finding.saving_share)
            words.append(between(least, most, "%"))
        return ", ".join(words)
    if finding.saving_bytes_per_step:
        return f"{size(finding.saving_bytes_per_step)} per step"
    return ""


def line(finding: Finding) -> str:
    """Say problem, fix and saving in one line."""
    parts = [sentence(finding.problem)]
    if finding.fix:
        saved = saving(finding)
        parts.append(f"{finding.fix}: saves {saved}." if saved else sentence(finding.fix))
    return " ".join(parts)


def between(low: float, high: float, unit: str) -> str:
    """Say a range, no more exact than an estimate is: from low to high, or "up to 0.3 ms"."""
    ends = [f"{value:,.{0 if value >= 9.95 else 1}f}" for value in (low, high)]
    if ends[1] == "0.0" and high:
        return f"< 0.1 {unit}"
    if ends[0] == "0.0" != ends[1]:
        return f"up to {ends[1]} {unit}"
    return f"{_DASH.join(dict.fromkeys(ends))} {unit}"


def _more(others: Sequence[str]) -> str:
    return f" and {len(others)} more" if others else ""


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return _number(value)
    return "null" if value is None else str(value)


def _number(value: int) -> str:
    digits, exponent = f"{value:e}".split("e")
    is_round = abs(value) >= _ROUND and float(digits).is_integer()
    return f"{float(digits):.0f}e{int(exponent)}" if is_round else f"{value:,}"
