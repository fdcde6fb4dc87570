"""How the hardware of a run multiplies matrices of a precision."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, NamedTuple

from dsprof.analysis.aggregates.environment import EnvironmentFacts
from dsprof.analysis.rank_sets import RankSet
from dsprof.rules.hardware.hosts import architectures, multiplies

HALVES = ("bf16", "fp16")
CPU = "this CPU"

Level = Literal["units", "converted", "none", ""]
"""What computes a precision: units of its own, those of fp32, or none; "" where that is unknown."""
_LEVELS: dict[bool | None, Level] = {True: "units", False: "none", None: ""}


class Support(NamedTuple):
    """How a kind of hardware multiplies a precision."""

    hardware: str
    level: Level
    ranks: RankSet = 0  # 0: all


def is_run(facts: EnvironmentFacts) -> bool:
    """Whether something was trained: a configuration file may be for other machines."""
    return any(facts.backends.get("device", ()))


def supports(facts: EnvironmentFacts, precision: str) -> Iterator[Support]:
    """Yield how each kind of hardware multiplies a precision; without a run, accelerators only."""
    if facts.uses_gpu or not is_run(facts):
        for name, architecture in architectures(facts).items():
            known = multiplies(architecture, precision)
            yield Support(name or "the device", _LEVELS[known])
    elif precision == "fp32":
        yield Support(CPU, "units")
    elif precision not in HALVES:
        yield Support(CPU, "none")
    else:
        answers = facts.precision.get(f"cpu_{precision}", {})
        for answer, ranks in answers.items():
            level = "none" if answer == "no" else _level(facts, precision, ranks)
            yield Support(CPU, level, ranks if len(answers) > 1 else 0)


def _level(facts: EnvironmentFacts, precision: str, ranks: RankSet) -> Level:
    """Return whether the CPUs of `ranks` have instructions for a precision or convert it."""
    instructions = [
        set(names.split())
        for names, here in facts.precision.get("cpu_instructions", {}).items()
        if here & ranks
    ]
    own = {f"avx512_{precision}", f"amx_{precision}"}
    is_converted = any("avx512bw" in names and not names & own for names in instructions)
    return "converted" if is_converted else "units"


def tf32_devices(facts: EnvironmentFacts) -> list[str] | None:
    """Return the kinds of devices that have TF32; None where it is not known of any."""
    if not facts.uses_gpu:
        return []
    known = {name: multiplies(kind, "tf32") for name, kind in architectures(facts).items()}
    able = [name for name, has_tf32 in known.items() if has_tf32]
    return able or (None if None in known.values() or not known else [])


def tf32_is_forbidden(facts: EnvironmentFacts) -> bool:
    """Whether a variable keeps libraries from TF32, whatever the program sets."""
    return "0" in facts.variables.get("NVIDIA_TF32_OVERRIDE", {})


def fp32_products(facts: EnvironmentFacts) -> str:
    """Return how devices multiply fp32: "ieee", "tf32", or "" where that is not known."""
    found = facts.precision.get("fp32_products", {})
    if tf32_is_forbidden(facts) or "ieee" in found:
        return "ieee"
    return next(iter(found), "")
