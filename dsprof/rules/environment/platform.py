"""Questions about the platform of a run: each answers yes, no, or None where nothing tells.

A setting is wrong on one machine and right on the next, so rules on variables ask here before they
say anything.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable
from typing import NamedTuple

from dsprof.analysis.aggregates.environment import EnvironmentFacts
from dsprof.environment.launchers import count
from dsprof.files.redaction import REDACTED
from dsprof.rules.environment.variable_values import is_true
from dsprof.rules.hardware.hosts import accelerators_of_a_host, is_seen, links, models, vendors
from dsprof.rules.knowledge.releases import version

Answer = bool | None

_WORLD_SIZES = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "SLURM_NTASKS")
_LOCAL_WORLD_SIZES = ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "SLURM_NTASKS_PER_NODE")


class Question(NamedTuple):
    """Something that makes a setting right or wrong; `about` says what is missing for an answer."""

    ask: Callable[[EnvironmentFacts], Answer]
    about: str


def answer(question: str, facts: EnvironmentFacts) -> Answer:
    """Answer a question of `QUESTIONS`; "!name" is its opposite."""
    said = QUESTIONS[question.removeprefix("!")].ask(facts)
    return not said if question.startswith("!") and said is not None else said


def answer_all(questions: Iterable[str], facts: EnvironmentFacts) -> tuple[Answer, str]:
    """Return whether all questions are true, and what is missing where that is unknown."""
    said = {question: answer(question, facts) for question in questions}
    if False in said.values():
        return False, ""
    unknown = [name for name, value in said.items() if value is None]
    if unknown:
        return None, QUESTIONS[unknown[0].removeprefix("!")].about
    return True, ""


def several_hosts(facts: EnvironmentFacts) -> Answer:
    """Whether ranks are on more than one host."""
    if any(len(facts.backends.get(known, {})) > 1 for known in ("host", "boot")):
        return True
    world = _world_size(facts)
    if 1 < world <= (facts.recorded | facts.missing).bit_count():
        return False  # some launchers set LOCAL_WORLD_SIZE=1 for all ranks of a host
    local = _largest_variable(facts, _LOCAL_WORLD_SIZES)
    if world > 1 and local:
        return world > local
    if nodes := _largest_variable(facts, ("SLURM_NNODES", "SLURM_JOB_NUM_NODES")):
        return nodes > 1
    return None


def several_accelerators(facts: EnvironmentFacts) -> Answer:
    """Whether a host has more than one accelerator."""
    if _largest_variable(facts, _LOCAL_WORLD_SIZES) > 1:
        return True
    return accelerators_of_a_host(facts) > 1 if is_seen(facts) else None


def linked(facts: EnvironmentFacts) -> Answer:
    """Whether NVLink or xGMI connects the accelerators of a host."""
    return _by_link(facts, ("switch", "switch8", "direct"))


def multicast(facts: EnvironmentFacts) -> Answer:
    """Whether NVSwitches can reduce: Hopper and later, where a host has all eight of them."""
    if not (found := models(facts)):
        return False if is_seen(facts) else None
    if any(model is None for model in found):
        return None
    eight = accelerators_of_a_host(facts) >= 8
    return any(m and (m.link == "switch" or (m.link == "switch8" and eight)) for m in found)


def tensor_parallel(facts: EnvironmentFacts) -> Answer:
    """Whether ranks split layers; None before groups exist."""
    if {"tensor", "sequence", "context", "model"} & facts.roles.keys():
        return True
    return False if facts.roles and "" not in facts.roles else None


def _by_link(facts: EnvironmentFacts, wanted: tuple[str, ...]) -> Answer:
    if several_accelerators(facts) is False:
        return False
    known = {model.link for model in models(facts) if model} - {""}
    return bool(known & set(wanted)) if known else None


def _is_of_architecture(name: str) -> Callable[[EnvironmentFacts], Answer]:
    def ask(facts: EnvironmentFacts) -> Answer:
        found = models(facts)
        if any(model and model.architecture == name for model in found):
            return True
        return None if None in found or not (found or is_seen(facts)) else False

    return ask


def _has_vendor(name: str) -> Callable[[EnvironmentFacts], Answer]:
    return lambda facts: name in vendors(facts) if vendors(facts) or is_seen(facts) else None


def _has_link(*names: str) -> Callable[[EnvironmentFacts], Answer]:
    return lambda facts: bool(links(facts) & set(names)) if is_seen(facts) else None


def _uses(*backends: str) -> Callable[[EnvironmentFacts], Answer]:
    def ask(facts: EnvironmentFacts) -> Answer:
        names = facts.backends.get("backend", {})  # such as "cpu:gloo,cuda:nccl"
        parts = {part.split(":")[-1] for name in names for part in name.split(",")}
        return bool(parts & set(backends))

    return ask


def _any(
    known: Callable[[EnvironmentFacts], Collection[str]], passes: Callable[[str], object]
) -> Callable[[EnvironmentFacts], Answer]:
    """Ask whether one of the known texts passes; None where none is known."""

    def ask(facts: EnvironmentFacts) -> Answer:
        return any(map(passes, held)) if (held := known(facts)) else None

    return ask


def _machine(name: str, passes: Callable[[str], object]) -> Callable[[EnvironmentFacts], Answer]:
    return _any(lambda facts: facts.machine.get(name, {}), passes)


def _is_made_by(name: str) -> Callable[[EnvironmentFacts], Answer]:
    """Ask the firmware's name of the machine's maker; many containers do not see it."""
    return _machine("vendor", lambda maker: name in maker)


def _says(name: str, pattern: str) -> Callable[[EnvironmentFacts], Answer]:
    return _machine(name, re.compile(pattern).fullmatch)


def _is_before(name: str, *release: int) -> Callable[[EnvironmentFacts], Answer]:
    return _any(lambda facts: facts.versions.get(name, {}), lambda text: version(text) < release)


def _rocm(facts: EnvironmentFacts) -> Collection[str]:
    return facts.machine.get("rocm", {}).keys() | facts.versions.get("hip", {}).keys()


def _sets(*prefixes: str) -> Callable[[EnvironmentFacts], Answer]:
    return lambda facts: any(name.startswith(prefixes) for name in facts.variables)


def _variable(name: str, passes: Callable[[str], bool]) -> Callable[[EnvironmentFacts], Answer]:
    return lambda facts: any(map(passes, facts.variables.get(name, ())))


def _has_deepspeed(facts: EnvironmentFacts) -> Answer:
    return bool(facts.with_engine) or "deepspeed" in facts.versions


def _arm(facts: EnvironmentFacts) -> Answer:
    """Whether the hosts have ARM processors, whose kernel names no vendor of the CPUs."""
    if known := facts.machine.get("architecture"):
        return bool({"aarch64", "arm64"} & known.keys())
    return False if facts.machine.get("cpu_vendor") else None


def _uses_rccl(facts: EnvironmentFacts) -> Answer:
    """Whether torch was built for ROCm; it names only one of CUDA and HIP."""
    if "hip" in facts.versions:
        return True
    return False if "cuda" in facts.versions or "nvidia" in vendors(facts) else None


def _world_size(facts: EnvironmentFacts) -> int:
    recorded = _largest_number(facts.backends.get("world", {}))
    return max(recorded, _largest_variable(facts, _WORLD_SIZES))


def _largest_variable(facts: EnvironmentFacts, names: Iterable[str]) -> int:
    return max(_largest_number(facts.variables.get(name, {})) for name in names)


def _largest_number(values: Iterable[str]) -> int:
    return max(map(count, values), default=0)


_HOSTS = "whether ranks are on several hosts"
_DEVICES = "which accelerators the hosts have"
_LINKS = "how the accelerators of a host are linked"
_NETWORK = "which network adapters the hosts have"
_MACHINE = "whose machine it is"

QUESTIONS = {
    "nccl": Question(_uses("nccl", "rccl"), ""),
    "hccl": Question(_uses("hccl"), ""),
    "oneccl": Question(_uses("ccl", "xccl"), ""),
    "gloo": Question(_uses("gloo"), ""),
    "several-hosts": Question(several_hosts, _HOSTS),
    "several-accelerators": Question(several_accelerators, _DEVICES),
    "linked": Question(linked, _LINKS),
    "pcie": Question(lambda facts: _by_link(facts, ("pcie",)), _LINKS),
    "multicast": Question(multicast, _LINKS),
    "nvidia": Question(_has_vendor("nvidia"), _DEVICES),
    "amd": Question(_has_vendor("amd"), _DEVICES),
    "mi200": Question(_is_of_architecture("mi200"), _DEVICES),
    "blackwell": Question(_is_of_architecture("blackwell"), _DEVICES),
    "infiniband": Question(_has_link("infiniband"), _NETWORK),
    "roce": Question(_has_link("roce"), _NETWORK),
    "efa": Question(_has_link("efa"), _NETWORK),
    "slingshot": Question(_has_link("slingshot"), _NETWORK),
    "plugin-network": Question(_has_link("efa", "slingshot"), _NETWORK),
    "fast-network": Question(_has_link("infiniband", "efa", "slingshot"), _NETWORK),
    "peer-memory": Question(
        _machine("modules", lambda one: "nv" in one and "peer" in one),
        "which kernel modules are loaded",
    ),
    "verbs": Question(_has_link("infiniband", "efa"), _NETWORK),
    "may-lock-memory": Question(_says("may_lock_memory", "yes"), "what the process may do"),
    "virtual": Question(_says("virtual", "yes"), "whether the hosts are virtual machines"),
    "cray": Question(_says("kernel", ".*cray.*"), "the kernel of the hosts"),
    "many-ranks": Question(lambda facts: _world_size(facts) > 64, ""),
    "torch-before-2.8": Question(_is_before("torch", 2, 8), "the torch version"),
    "torch-before-2.9": Question(_is_before("torch", 2, 9), "the torch version"),
    "nccl-before-2.21": Question(_is_before("nccl", 2, 21), "the NCCL version"),
    "nccl-before-2.28": Question(_is_before("nccl", 2, 28), "the NCCL version"),
    "azure": Question(_is_made_by("Microsoft"), _MACHINE),
    "aws": Question(_is_made_by("Amazon"), _MACHINE),
    "google": Question(_is_made_by("Google"), _MACHINE),
    "google-plugin": Question(_sets("NCCL_FASTRAK_", "NCCL_GPUDIRECTTCPX_"), ""),
    "fastrak": Question(_sets("NCCL_FASTRAK_"), ""),
    "high-priority": Question(_variable("TORCH_NCCL_HIGH_PRIORITY", is_true), ""),
    "deepspeed": Question(_has_deepspeed, ""),
    "tensor-parallel": Question(tensor_parallel, "whether layers are split over ranks"),
    "rocm-7.13": Question(_any(_rocm, lambda text: version(text) >= (7, 13)), "the ROCm version"),
    "rccl": Question(_uses_rccl, "whether torch was built for ROCm"),
    "arm": Question(_arm, "the processors of the hosts"),
    "kernel-6.8": Question(
        _machine("kernel", lambda text: version(text) >= (6, 8)), "the kernel of the hosts"
    ),
    "blocking-calls": Question(
        _variable(
            "TORCH_NCCL_USE_COMM_NONBLOCKING",
            lambda value: value != REDACTED and not is_true(value),
        ),
        "",
    ),
}
