"""The machine that a rank runs on: accelerators, network adapters, kernel and CPUs.

Everything is read from /sys and /proc in a few milliseconds: no driver's library is loaded and no
process started. What a machine does not tell is absent. Each probe takes the root of the file
system that it reads, "/" or a test's own.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from dsprof.environment.processes import read_text

ROOT = Path("/")

_MOST_DEVICES = 64
_MODULES = ("nvidia_peermem", "nv_peer_mem", "gdrdrv", "amdgpu", "efa", "cxi_core", "ib_core")
_COMMUNICATION_LIBRARY = re.compile(
    r"/lib(?:(?:nccl|rccl|hccl|ccl|fabric|ucc|ucp)(?:-[\w-]+)?|[\w-]*ofi[\w-]*)\.so"
)
_CLOCK = "sys/devices/system/cpu/cpu0/cpufreq"
_ETHERNET = "1"  # of /sys/class/net/*/type; IP over InfiniBand is 32
_DISCRETE_DISPLAY = "0x0380"  # PCI class of displays without a monitor; a processor's own has 0300

OF_A_RANK = ("cpus", "cpu_nodes")
"""Facts that differ between ranks of a host by design."""

T = TypeVar("T")


def boot_id() -> str:
    """Return an id of this boot of this machine, "" where there is none."""
    return first_line(ROOT / "proc/sys/kernel/random/boot_id")


class Accelerator(msgspec.Struct, frozen=True, omit_defaults=True):
    """An accelerator as the kernel lists it, in the order of PCI addresses."""

    vendor: str  # "nvidia", "amd", "intel" or "ascend"
    name: str = ""  # the driver's, e.g. "NVIDIA H100 80GB HBM3"; of AMD the target, "gfx942"
    address: str = ""  # PCI
    numa_node: int = -1


class Adapter(msgspec.Struct, frozen=True, omit_defaults=True):
    """A port of a network adapter that goes past TCP."""

    name: str  # "mlx5_0:1", "cxi0"
    driver: str = ""  # "mlx5_core", "efa", "cxi"
    link: str = ""  # "InfiniBand", "Ethernet"...
    rate: str = ""
    state: str = ""  # "ACTIVE", "DOWN"...


def accelerators(root: Path = ROOT) -> list[Accelerator]:
    """List the accelerators of this machine, also those that this process may not use."""
    found = [*_nvidia(root), *_amd(root), *_intel(root), *_ascend(root)]
    return found[:_MOST_DEVICES]


def adapters(root: Path = ROOT) -> list[Adapter]:
    """List ports of InfiniBand, RoCE, EFA and Slingshot adapters."""
    ports = listed(root / "sys/class/infiniband", "*/ports/*")
    slingshot = listed(root / "sys/class/cxi")
    found = [_port(path) for path in ports]
    found += [Adapter(path.name, "cxi", "Slingshot", state="ACTIVE") for path in slingshot]
    return found[:_MOST_DEVICES]


def interfaces(root: Path = ROOT) -> list[str]:
    """Describe network interfaces: "eth0 up 25000 Mbit/s"; -1, as of virtual ones, is no speed."""
    found = []
    for path in listed(root / "sys/class/net"):
        speed = first_line(path / "speed")
        rate = f"{speed} Mbit/s" if speed.isdecimal() else ""
        found.append(" ".join(filter(None, (path.name, first_line(path / "operstate"), rate))))
    return [one for one in found if not one.startswith("lo ")][:_MOST_DEVICES]


def facts(root: Path = ROOT) -> dict[str, str]:
    """Read what the kernel says of the machine and of where this process may run."""
    probes: dict[str, Callable[[Path], str]] = {
        "kernel": lambda root: os.uname().release,
        "architecture": lambda root: os.uname().machine,
        "vendor": lambda root: first_line(root / "sys/class/dmi/id/sys_vendor"),
        "product": lambda root: first_line(root / "sys/class/dmi/id/product_name"),
        "cpu_vendor": lambda root: _cpu(root, "vendor_id"),
        "virtual": lambda root: "yes" if "hypervisor" in cpu_flags(root) else "no",
        "cpus": lambda root: written(os.sched_getaffinity(0)),
        "cpu_nodes": _cpu_nodes,
        "cpu_governor": _cpu_governor,
        "cpu_clock": _cpu_clock,
        "ethernet": _ethernet,
        "numa_balancing": lambda root: first_line(root / "proc/sys/kernel/numa_balancing"),
        "iommu": _iommu,
        "may_lock_memory": _may_lock_memory,
        "modules": _modules,
        "nvidia_driver": _nvidia_driver,
        "amdgpu_driver": lambda root: first_line(root / "sys/module/amdgpu/version"),
        "rocm": lambda root: first_line(root / "opt/rocm/.info/version"),
        "verbs_devices": lambda root: str(len(listed(root / "dev/infiniband", "uverbs*"))),
        "topology_files": lambda root: " ".join(
            path.name for path in listed(root / "opt/microsoft", "*topo*.xml")
        ),
    }
    found = {name: attempt(probe, "", root) for name, probe in probes.items()}
    return {name: value for name, value in found.items() if value}


def cpu_flags(root: Path = ROOT) -> frozenset[str]:
    """Return the instructions of the first CPU, by the kernel's names.

    Raises:
        OSError: the CPUs are unknown.
    """
    return frozenset(_cpu(root, "flags").split())


def libraries(loaded: Callable[[], str] | None = None, root: Path = ROOT) -> list[str]:
    """List the communication libraries that this process has loaded, by their real paths.

    `loaded` returns the paths of all libraries, one a line. Without it, and if it gives a path
    relative to a folder that may be another one now, the kernel's maps are read instead.
    """
    text = attempt(loaded, "") if loaded is not None else ""
    paths = _lines_of_libraries(text)
    if not text or not all(map(os.path.isabs, paths)):
        lines = _lines_of_libraries(attempt((root / "proc/self/maps").read_text, ""))
        paths = [line.split(maxsplit=5)[-1] for line in lines]
    return sorted(set(map(os.path.realpath, paths)))[:_MOST_DEVICES]


def _lines_of_libraries(text: str) -> list[str]:
    found = []
    for match in _COMMUNICATION_LIBRARY.finditer(text):
        begin, end = text.rfind("\n", 0, match.start()) + 1, text.find("\n", match.end())
        found.append(text[begin : end if end >= 0 else None])
    return found


def written(numbers: Iterable[int]) -> str:
    """Write a set of numbers as the kernel does: "0-3,8"."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and runs[-1][-1] == number - 1:
            runs[-1][1:] = [number]
        else:
            runs.append([number])
    return ",".join("-".join(map(str, run)) for run in runs)


_MOST_NUMBERS = 1 << 16
"""Linux counts up to 8,192 CPUs; a set may come from a file that somebody else wrote."""


def read_set(text: str) -> set[int]:
    """Read what `written` wrote.

    Raises:
        ValueError: it is none, or names more than any machine has.
    """
    ends = [[int(end) for end in part.split("-")] for part in text.split(",") if part.strip()]
    if sum(max(run[-1] - run[0], 0) + 1 for run in ends) > _MOST_NUMBERS:
        raise ValueError(f"more than {_MOST_NUMBERS} numbers")
    return {number for run in ends for number in range(run[0], run[-1] + 1)}


def _nvidia(root: Path) -> list[Accelerator]:
    return [
        _accelerator(root, "nvidia", _model(path / "information"), path.name)
        for path in listed(root / "proc/driver/nvidia/gpus")
    ]


def _model(path: Path) -> str:
    found = re.search(r"^Model:\s*(.+)$", read_text(path), re.MULTILINE)
    return found[1].strip() if found else ""


def _amd(root: Path) -> list[Accelerator]:
    found = []
    for path in listed(root / "sys/class/kfd/kfd/topology/nodes"):
        values = dict(re.findall(r"^(\w+) (\d+)$", read_text(path / "properties"), re.M))
        if int(values.get("simd_count", 0)):
            target = int(values.get("gfx_target_version", 0))
            found.append(_accelerator(root, "amd", _target(target), _kfd_address(values)))
    return found


def _target(version: int) -> str:
    """Return the name of a target: 90402 is gfx942, 90010 gfx90a."""
    return f"gfx{version // 10000}{version // 100 % 100:x}{version % 100:x}" if version else ""


def _kfd_address(values: dict[str, str]) -> str:
    place, domain = int(values.get("location_id", 0)), int(values.get("domain", 0))
    return f"{domain:04x}:{place >> 8 & 0xFF:02x}:{place >> 3 & 0x1F:02x}.{place & 7}"


def _intel(root: Path) -> list[Accelerator]:
    devices = {path.resolve() for path in listed(root / "sys/class/drm", "renderD*/device")}
    return [
        _accelerator(root, "intel", "", device.name)
        for device in sorted(devices)
        if first_line(device / "vendor") == "0x8086"
        and first_line(device / "class").startswith(_DISCRETE_DISPLAY)
    ]


def _ascend(root: Path) -> list[Accelerator]:
    return [Accelerator("ascend", path.name) for path in listed(root / "dev", "davinci[0-9]*")]


def _accelerator(root: Path, vendor: str, name: str, address: str) -> Accelerator:
    node = first_line(root / "sys/bus/pci/devices" / address.lower() / "numa_node")
    return Accelerator(vendor, name, address, int(node) if re.fullmatch(r"-?\d+", node) else -1)


def _port(path: Path) -> Adapter:
    device = path.parent.parent
    driver = attempt(lambda: os.readlink(device / "device/driver"), "")
    return Adapter(
        name=f"{device.name}:{path.name}",
        driver=driver.rsplit("/", 1)[-1],
        link=first_line(path / "link_layer"),
        rate=first_line(path / "rate"),
        state=first_line(path / "state").rsplit(" ", 1)[-1],
    )


def _cpu(root: Path, field: str) -> str:
    """Return a field of the first CPU.

    Raises:
        OSError: the CPUs are unknown.
    """
    start = _first_cpu(root)
    found = re.search(rf"^{field}\s*: (.+)$", start, re.MULTILINE)
    return found[1] if found else ""


@cache
def _first_cpu(root: Path) -> str:
    """Return what the kernel writes of the first CPU; of many, all text would be long.

    Raises:
        OSError: the CPUs are unknown.
    """
    with (root / "proc/cpuinfo").open(encoding="utf-8", errors="replace") as file:
        return file.read(8192)


def _cpu_nodes(root: Path) -> str:
    """Return the NUMA nodes on whose CPUs this process may run."""
    mine = os.sched_getaffinity(0)
    nodes = listed(root / "sys/devices/system/node", "node[0-9]*")
    return written(
        int(node.name.removeprefix("node"))
        for node in nodes
        if mine & read_set(first_line(node / "cpulist"))
    )


def _cpu_governor(root: Path) -> str:
    """Return who sets the clock of the first CPU, and how: "intel_pstate powersave"."""
    names = ("scaling_driver", "scaling_governor")
    return " ".join(first_line(root / _CLOCK / name) for name in names).strip()


def _cpu_clock(root: Path) -> str:
    """Return the highest clock that the first CPU may have, and that it could: "2000 of 3500 MHz".

    Raises:
        ValueError: the kernel does not tell.
    """
    names = ("scaling_max_freq", "cpuinfo_max_freq")
    may, could = (int(first_line(root / _CLOCK / name)) // 1000 for name in names)
    return f"{may} of {could} MHz" if may < could else f"{may} MHz"


def _ethernet(root: Path) -> str:
    """Return the fastest interfaces that are up, and bonds: "2 of 100000 Mbit/s, bond 802.3ad".

    Virtual interfaces do not count, nor those that tell no speed, as in virtual machines.
    """
    folders = listed(root / "sys/class/net")
    up = [path for path in folders if first_line(path / "operstate") == "up"]
    ethernet = [path for path in up if first_line(path / "type") == _ETHERNET]
    told = [first_line(path / "speed") for path in ethernet if (path / "device").exists()]
    speeds = [int(speed) for speed in told if speed.isdecimal()]
    modes = sorted(first_line(path / "bonding/mode").split(" ")[0] for path in ethernet)
    fastest = [f"{speeds.count(max(speeds))} of {max(speeds)} Mbit/s"] if speeds else []
    return ", ".join([*fastest, *(f"bond {mode}" for mode in modes if mode)])


def _iommu(root: Path) -> str:
    """Return what was set about the IOMMU at boot, "default" where nothing was."""
    line = (root / "proc/cmdline").read_text()
    return " ".join(re.findall(r"\b(?:amd_|intel_)?iommu=\S+", line)) or "default"


def _may_lock_memory(root: Path) -> str:
    """Return whether this process has CAP_IPC_LOCK: then no limit on locked memory holds."""
    found = re.search(r"^CapEff:\s*([0-9a-f]+)$", read_text(root / "proc/self/status"), re.M)
    return ("yes" if int(found[1], 16) >> 14 & 1 else "no") if found else ""


def _modules(root: Path) -> str:
    """Return those modules that matter to communication, "none" of them, or "" if not known."""
    loaded = {path.name for path in listed(root / "sys/module")}
    return (" ".join(name for name in _MODULES if name in loaded) or "none") if loaded else ""


def _nvidia_driver(root: Path) -> str:
    """Return the driver's version, and whether its kernel module is the open one."""
    line = first_line(root / "proc/driver/nvidia/version")
    found = re.search(r"\s(\d+\.[\d.]+)\s", line)
    kind = "open" if "Open Kernel Module" in line else "proprietary"
    return f"{found[1]} {kind}" if found else ""


def attempt(probe: Callable[..., T], absent: T, *arguments: Any) -> T:
    """Return what `probe` finds, or `absent`: no machine has everything that is looked for."""
    try:
        return probe(*arguments)
    except Exception:  # noqa: BLE001 - a probe must not stop a training run, whatever it meets
        return absent


def listed(folder: Path, pattern: str = "*") -> list[Path]:
    """Return the paths in `folder` that match, in order; none where it cannot be read."""
    try:
        return sorted(folder.glob(pattern))
    except OSError:
        return []


def first_line(path: Path) -> str:
    """Return the first line of a file, "" where it cannot be read."""
    return read_text(path).partition("\n")[0].strip()
