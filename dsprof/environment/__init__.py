"""The environment of a rank: variables, configuration files, versions, devices and limits.

Only names that begin as those of libraries and launchers do are read, and only values that known
ones of them have are kept: any other is replaced by `REDACTED`. Every probe
tolerates the absence of what it reads, and none imports torch or starts a process.
"""

from __future__ import annotations

import ctypes
import os
import re
import resource
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from dsprof.environment import machine, precision
from dsprof.environment.machine import Accelerator, Adapter, attempt, listed
from dsprof.files.inputs import open_input
from dsprof.files.redaction import REDACTED
from dsprof.files.redaction.known_settings import written_variable, written_variables

_PREFIXES = (
    *("DSPROF", "PYTHON_DSPROF", "DS_", "DEEPSPEED_"),
    *("NCCL_", "RCCL_", "OFI_", "FI_", "UCX_", "UCC_", "CCL_", "HCCL_", "GLOO_", "TP_", "CXI_"),
    *("TORCH_", "PYTORCH_", "CUDA_", "NVIDIA_", "NVTE_", "OMP_"),
    *("HIP_", "HSA_", "ROCR_", "GPU_", "AMD_", "MIOPEN_"),
    *("SLURM_", "OMPI_", "PMI_", "MPICH_", "LOCAL_", "MASTER_"),
)
_NAMES = frozenset(
    ("RANK", "WORLD_SIZE", "GROUP_RANK", "LD_LIBRARY_PATH", "LD_PRELOAD", "USE_LIBUV")
    + ("RDMAV_FORK_SAFE",)
    + ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "RAY_JOB_ID")
)

_FLEETING = frozenset(("PYTORCH_NVML_BASED_CUDA_CHECK",))
"""Libraries set these for a moment, each rank at another time, so a difference means nothing."""

_PACKAGES = {
    "torch": ("torch",),
    "deepspeed": ("deepspeed",),
    "nccl": ("nvidia-nccl-cu13", "nvidia-nccl-cu12", "nvidia-nccl-cu11"),  # if torch is not there
}

Digest = Callable[[str, str], str]
"""A digest by which ranks compare the redacted value of a name; "" where they cannot."""

_LARGEST_FILE_BYTES = 64 * 1024


class EnvSnapshot(msgspec.Struct, omit_defaults=True):
    """The environment of one rank; what could not be read is absent."""

    variables: dict[str, str] = {}
    effective: dict[str, str] = {}  # names whose value after the first collective differs
    files: dict[str, dict[str, str]] = {}  # configuration files of NCCL and RCCL
    versions: dict[str, str] = {}
    gpus: list[str] = []  # that torch names, once it uses them
    network_devices: list[str] = []  # interfaces
    limits: dict[str, int] = {}  # bytes: memlock, stack, shm; nofile, cpus...; -1: unlimited
    redacted: list[str] = []
    digests: dict[str, str] = {}  # of redacted values in force, under a key of the run
    accelerators: list[Accelerator] = []  # of the machine, whoever may use them
    adapters: list[Adapter] = []
    machine: dict[str, str] = {}  # of machine.facts: kernel, driver, CPUs of this process...
    libraries: list[str] = []  # of communication, loaded after the first step
    precision: dict[str, str] = {}  # of precision.facts: what is multiplied fast


def is_recorded(name: str) -> bool:
    """Whether a variable of this name may be read."""
    return name in _NAMES or (name.startswith(_PREFIXES) and name not in _FLEETING)


def no_digest(name: str, value: str) -> str:
    """Return the digest of a redacted value where no ranks compare it: none."""
    return ""


def snapshot(environ: Mapping[str, str], digest: Digest = no_digest) -> EnvSnapshot:
    """Read the environment of this process; never raises.

    Configuration files set variables inside NCCL with C `setenv`: they are absent from `environ`,
    so they are read here, and `after_first_step` asks the C library after the first collective.
    """
    found = EnvSnapshot(
        variables={
            name: unicode_text(environ.get(name, "")) for name in list(environ) if is_recorded(name)
        },
        files=_conf_values(environ),
        versions=attempt(_versions, {}),
        gpus=attempt(_gpus, []),
        network_devices=attempt(machine.interfaces, []),
        limits=_limits(),
        accelerators=attempt(machine.accelerators, []),
        adapters=attempt(machine.adapters, []),
        machine=attempt(machine.facts, {}),
        precision=attempt(precision.facts, {}, environ),
    )
    written = written_snapshot(found)
    digests = _digests(found.variables, written.variables, digest)
    return msgspec.structs.replace(written, digests=digests)


def after_first_step(
    snapshot: EnvSnapshot,
    digest: Digest = no_digest,
    loaded: Callable[[], str] | None = None,
) -> EnvSnapshot | None:
    """Return the snapshot with what is known only now, None if that is nothing.

    `loaded` is as for `machine.libraries`.
    """
    held, absent = attempt(_held, dict[str, str](), snapshot), list[str]()
    written = {name: written_variable(name, value) for name, value in held.items()}
    found = msgspec.structs.replace(
        snapshot,
        effective={
            name: value
            for name, value in written.items()
            if value != snapshot.variables.get(name, "")
        },
        digests=_digests(held, written, digest),
        libraries=attempt(machine.libraries, absent, loaded),
        precision=attempt(precision.facts, snapshot.precision, os.environ),
    )
    return None if found == snapshot else found


_SURROGATE = re.compile("[\ud800-\udfff]")


def unicode_text(value: str) -> str:
    """Return `value` without what is no Unicode: bytes of another encoding are marked."""
    return _SURROGATE.sub("\ufffd", value)


def written_snapshot(found: EnvSnapshot) -> EnvSnapshot:
    """Return `found` with the values that may be written, and the names of the others."""
    parts = (found.variables, found.effective, *found.files.values())
    written = [written_variables(values) for values in parts]
    hidden = {name for part in written for name, value in part.items() if value == REDACTED}
    variables, effective, *files = written
    return msgspec.structs.replace(
        found,
        variables=variables,
        effective=effective,
        files=dict(zip(found.files, files, strict=True)),
        redacted=sorted(hidden.union(found.redacted)),
    )


def _held(snapshot: EnvSnapshot) -> dict[str, str]:
    """Return what the C library now holds for known names; "" of one that is no longer set.

    After the first collective NCCL has added the values of its configuration files.
    """
    getenv = ctypes.pythonapi["getenv"]
    getenv.restype = ctypes.c_char_p
    names = {name for name in os.environ if is_recorded(name)}
    names.update(snapshot.variables, *snapshot.files.values())
    found = {name: getenv(name.encode()) or b"" for name in sorted(names)}
    return {name: unicode_text(os.fsdecode(value)) for name, value in found.items()}


def _digests(
    values: Mapping[str, str], written: Mapping[str, str], digest: Digest
) -> dict[str, str]:
    """Return the digests of those values of which `written` has only the name."""
    hidden = [name for name in values if written.get(name) == REDACTED]
    made = {name: digest(name, values[name]) for name in hidden}
    return {name: value for name, value in made.items() if value}


def _conf_files(environ: Mapping[str, str]) -> list[Path]:
    """Return the files that NCCL and RCCL read; NCCL_CONF_FILE replaces ~/.nccl.conf."""
    home = Path(environ.get("HOME", "/nonexistent"))
    user = Path(environ["NCCL_CONF_FILE"]) if "NCCL_CONF_FILE" in environ else home / ".nccl.conf"
    return [Path("/etc/nccl.conf"), user, Path("/etc/rccl.conf"), home / ".rccl.conf"]


def _conf_values(environ: Mapping[str, str]) -> dict[str, dict[str, str]]:
    found = {}
    for path in _conf_files(environ):
        if values := attempt(_read_conf, None, path):
            found[str(path)] = values
    return found


def _read_conf(path: Path) -> dict[str, str]:
    with open_input(path) as file:
        lines = file.read(_LARGEST_FILE_BYTES).decode(errors="replace").splitlines()
    pairs = (line.split("=", 1) for line in lines if "=" in line and not line.startswith("#"))
    return {name.strip(): value.strip() for name, value in pairs if is_recorded(name.strip())}


def _versions() -> dict[str, str]:
    from importlib import metadata  # takes a tenth of the time in which a report starts

    found = {"python": sys.version.split()[0]}
    for name, packages in _PACKAGES.items():
        # Asked first: reading the metadata takes milliseconds, in the first step of a run.
        loaded = getattr(sys.modules.get(name), "__version__", "")
        known = (attempt(metadata.version, "", package) for package in packages)
        if version := loaded or next(filter(None, known), ""):
            found[name] = str(version)
    torch = sys.modules.get("torch")
    for name, probe in _torch_versions(torch).items():
        if version := attempt(probe, None):
            found[name] = version if isinstance(version, str) else ".".join(map(str, version))
    return found


def _torch_versions(torch: Any) -> dict[str, Callable[[], Any]]:
    return {
        "torch": lambda: str(torch.__version__),
        "cuda": lambda: torch.version.cuda,
        "hip": lambda: torch.version.hip,
        "nccl": lambda: torch.cuda.nccl.version(),
    }


def _gpus() -> list[str]:
    """Name the GPUs if CUDA is already in use; asking earlier would initialise it."""
    cuda = sys.modules["torch"].cuda
    if not cuda.is_initialized():
        return []
    return [str(cuda.get_device_name(index)) for index in range(cuda.device_count())]


def _limits() -> dict[str, int]:
    probes: dict[str, Callable[[], int]] = {
        "memlock_bytes": lambda: resource.getrlimit(resource.RLIMIT_MEMLOCK)[0],
        "stack_bytes": lambda: resource.getrlimit(resource.RLIMIT_STACK)[0],
        "nofile": lambda: resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        "shm_bytes": lambda: _size_bytes("/dev/shm"),
        "cpus": lambda: os.cpu_count() or 0,
        "usable_cpus": lambda: len(os.sched_getaffinity(0)),
        "numa_nodes": lambda: len(listed(Path("/sys/devices/system/node"), "node[0-9]*")),
    }
    found = {name: attempt(probe, None) for name, probe in probes.items()}
    return {name: value for name, value in found.items() if value is not None}


def _size_bytes(folder: str) -> int:
    system = os.statvfs(folder)
    return system.f_blocks * system.f_frsize
