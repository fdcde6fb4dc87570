"""dsprof.environment.machine: what the kernel's files say, on machines made of files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dsprof.environment import machine
from dsprof.environment.machine import Accelerator, Adapter
from dsprof.recording.recorder.hot_state import compiled


def put(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def link(root: Path, name: str, target: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(target)


def test_nvidia_gpus_with_their_numa_nodes(tmp_path):
    text = "Model: \t\t NVIDIA H100 80GB HBM3\nIRQ:   \t\t 212\nGPU UUID: \t GPU-1\n"
    put(
        tmp_path,
        {
            "proc/driver/nvidia/gpus/0000:1B:00.0/information": text,
            "proc/driver/nvidia/gpus/0000:9d:00.0/information": "",
            "sys/bus/pci/devices/0000:1b:00.0/numa_node": "1\n",
            "sys/bus/pci/devices/0000:9d:00.0/numa_node": "-1\n",
        },
    )
    assert machine.accelerators(tmp_path) == [
        Accelerator("nvidia", "NVIDIA H100 80GB HBM3", "0000:1B:00.0", 1),
        Accelerator("nvidia", "", "0000:9d:00.0", -1),
    ]


def test_amd_gpus_and_not_the_processors_beside_them(tmp_path):
    nodes = "sys/class/kfd/kfd/topology/nodes"
    cpu = "cpu_cores_count 64\nsimd_count 0\ngfx_target_version 0\n"
    gpu = "simd_count 440\ngfx_target_version 90010\nlocation_id 49408\ndomain 0\n"
    put(
        tmp_path,
        {
            f"{nodes}/0/properties": cpu,
            f"{nodes}/4/properties": gpu,
            "sys/bus/pci/devices/0000:c1:00.0/numa_node": "3\n",
        },
    )
    assert machine.accelerators(tmp_path) == [Accelerator("amd", "gfx90a", "0000:c1:00.0", 3)]


@pytest.mark.parametrize(("version", "name"), [("90402", "gfx942"), ("90500", "gfx950")])
def test_targets_are_written_as_rocm_does(tmp_path, version, name):
    text = f"simd_count 1\ngfx_target_version {version}\n"
    put(tmp_path, {"sys/class/kfd/kfd/topology/nodes/1/properties": text})
    assert [gpu.name for gpu in machine.accelerators(tmp_path)] == [name]


def test_intel_and_ascend(tmp_path):
    device = "sys/devices/pci0000:4d/0000:4f:00.0"
    own = "sys/devices/pci0000:00/0000:00:02.0"
    put(
        tmp_path,
        {
            f"{device}/vendor": "0x8086\n",
            f"{device}/class": "0x038000\n",
            f"{own}/vendor": "0x8086\n",
            f"{own}/class": "0x030000\n",
            "dev/davinci0": "",
            "dev/davinci_manager": "",
        },
    )
    link(tmp_path, "sys/class/drm/renderD128/device", str(tmp_path / device))
    link(tmp_path, "sys/class/drm/renderD129/device", str(tmp_path / own))
    assert machine.accelerators(tmp_path) == [
        Accelerator("intel", "", "0000:4f:00.0"),
        Accelerator("ascend", "davinci0"),
    ]


def test_ports_of_adapters(tmp_path):
    root = "sys/class/infiniband"
    put(
        tmp_path,
        {
            f"{root}/mlx5_0/ports/1/link_layer": "InfiniBand\n",
            f"{root}/mlx5_0/ports/1/rate": "400 Gb/sec (4X NDR)\n",
            f"{root}/mlx5_0/ports/1/state": "4: ACTIVE\n",
            f"{root}/rdmap16s27/ports/1/link_layer": "Unspecified\n",
            f"{root}/rdmap16s27/ports/1/state": "4: ACTIVE\n",
            "sys/class/cxi/cxi0/device/uevent": "",
        },
    )
    link(tmp_path, f"{root}/mlx5_0/device/driver", "../../../../bus/pci/drivers/mlx5_core")
    link(tmp_path, f"{root}/rdmap16s27/device/driver", "../../../bus/pci/drivers/efa")
    assert machine.adapters(tmp_path) == [
        Adapter("mlx5_0:1", "mlx5_core", "InfiniBand", "400 Gb/sec (4X NDR)", "ACTIVE"),
        Adapter("rdmap16s27:1", "efa", "Unspecified", "", "ACTIVE"),
        Adapter("cxi0", "cxi", "Slingshot", "", "ACTIVE"),
    ]


OPEN = (
    "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build  (dvs) Thu\n"
)
CLOSED = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5 22:23:56 UTC 2024\n"


@pytest.mark.parametrize(
    ("line", "expected"), [(OPEN, "570.86.15 open"), (CLOSED, "550.54.15 proprietary")]
)
def test_the_driver_and_whether_it_is_the_open_one(tmp_path, line, expected):
    put(tmp_path, {"proc/driver/nvidia/version": line})
    assert machine.facts(tmp_path)["nvidia_driver"] == expected


def test_of_the_boot_parameters_those_of_the_iommu_alone(tmp_path):
    put(tmp_path, {"proc/cmdline": "quiet iommu=pt token=abc amd_iommu=on\n"})
    assert machine.facts(tmp_path)["iommu"] == "iommu=pt amd_iommu=on"
    put(tmp_path, {"proc/cmdline": "quiet token=abc\n"})
    found = machine.facts(tmp_path)
    assert found["iommu"] == "default"
    assert "abc" not in str(found)


def test_modules_are_unknown_where_the_kernel_lists_none(tmp_path):
    assert "modules" not in machine.facts(tmp_path)
    put(tmp_path, {"sys/module/usb/x": "", "sys/module/nvidia_peermem/x": ""})
    assert machine.facts(tmp_path)["modules"] == "nvidia_peermem"


def test_the_numa_nodes_of_the_cpus_that_this_process_may_use(tmp_path, monkeypatch):
    monkeypatch.setattr(machine.os, "sched_getaffinity", lambda pid: {4, 5, 6, 9})
    nodes = {0: "0-3", 1: "4-7", 2: "8-11", 10: "12-15"}
    root = "sys/devices/system/node"
    put(tmp_path, {f"{root}/node{node}/cpulist": f"{cpus}\n" for node, cpus in nodes.items()})
    found = machine.facts(tmp_path)
    assert (found["cpus"], found["cpu_nodes"]) == ("4-6,9", "1-2")


def interface(root, name, **files):
    put(root, {f"sys/class/net/{name}/{one}": f"{text}\n" for one, text in files.items()})


def test_interfaces_with_their_states_and_known_speeds(tmp_path):
    interface(tmp_path, "eth0", operstate="up", speed="25000")
    interface(tmp_path, "eth1", operstate="up", speed="-1")
    interface(tmp_path, "ib0", operstate="down")
    interface(tmp_path, "lo", operstate="unknown")
    put(tmp_path, {"sys/class/infiniband/mlx5_0/ports/1/link_layer": "InfiniBand\n"})
    assert machine.interfaces(tmp_path) == ["eth0 up 25000 Mbit/s", "eth1 up", "ib0 down"]


def test_ethernet_is_the_fastest_physical_interfaces_that_are_up(tmp_path):
    assert "ethernet" not in machine.facts(tmp_path)
    real = {"type": "1", "device/vendor": "0x15b3"}
    interface(tmp_path, "eth0", operstate="up", speed="100000", **real)
    interface(tmp_path, "eth1", operstate="up", speed="100000", **real)
    interface(tmp_path, "eth2", operstate="down", speed="100000", **real)
    interface(tmp_path, "eno1", operstate="up", speed="1000", **real)
    interface(tmp_path, "ib0", operstate="up", speed="400000", **{**real, "type": "32"})
    interface(tmp_path, "veth7", operstate="up", speed="999999", type="1")
    interface(tmp_path, "vio", operstate="up", speed="-1", **real)
    assert machine.facts(tmp_path)["ethernet"] == "2 of 100000 Mbit/s"
    bond = {"type": "1", "speed": "200000", "bonding/mode": "802.3ad 4"}
    interface(tmp_path, "bond0", operstate="up", **bond)
    assert machine.facts(tmp_path)["ethernet"] == "2 of 100000 Mbit/s, bond 802.3ad"


@pytest.mark.parametrize(
    ("may", "could", "expected"),
    [("3500000", "3500000", "3500 MHz"), ("2000000", "3500000", "2000 of 3500 MHz")],
)
def test_the_clock_of_the_cpus_and_who_sets_it(tmp_path, may, could, expected):
    assert not {"cpu_clock", "cpu_governor"} & machine.facts(tmp_path).keys()
    files = {"scaling_driver": "acpi-cpufreq", "scaling_governor": "powersave"}
    files |= {"scaling_max_freq": may, "cpuinfo_max_freq": could}
    root = "sys/devices/system/cpu/cpu0/cpufreq"
    put(tmp_path, {f"{root}/{name}": f"{text}\n" for name, text in files.items()})
    found = machine.facts(tmp_path)
    assert (found["cpu_governor"], found["cpu_clock"]) == ("acpi-cpufreq powersave", expected)


def test_communication_libraries_of_this_process(tmp_path):
    lines = [
        "7f00-7f01 r-xp 00000000 08:01 42     /opt/nccl/lib/libnccl.so.2.27.5",
        "7f01-7f02 r--p 00000000 08:01 42     /opt/nccl/lib/libnccl.so.2.27.5",
        "7f02-7f03 r-xp 00000000 08:01 43     /opt/amazon/ofi-nccl/lib/libnccl-net-ofi.so",
        "7f03-7f04 r-xp 00000000 08:01 44     /usr/lib/libc.so.6",
        "7f04-7f05 rw-p 00000000 00:00 0      [heap]",
    ]
    put(tmp_path, {"proc/self/maps": "\n".join(lines)})
    assert machine.libraries(root=tmp_path) == [
        "/opt/amazon/ofi-nccl/lib/libnccl-net-ofi.so",
        "/opt/nccl/lib/libnccl.so.2.27.5",
    ]


def test_communication_libraries_as_the_loader_knows_them(tmp_path):
    real, other = tmp_path / "nccl/lib/libnccl.so.2", tmp_path / "torch/lib"
    put(tmp_path, {"nccl/lib/libnccl.so.2": "", "torch/lib/libtorch.so": ""})
    put(tmp_path, {"proc/self/maps": "7f00-7f01 r-xp 00000000 08:01 42     /moved/libucc.so.1"})
    (other / "libucp.so").symlink_to(real)
    paths = ["", "linux-vdso.so.1", f"{other}/../../nccl/lib/libnccl.so.2", f"{other}/libucp.so"]

    def found(*lines):
        return machine.libraries(lambda: "".join(f"{line}\n" for line in lines), tmp_path)

    assert found(*paths) == [str(real)]
    assert found(*paths[:2]) == []
    assert found(*paths, "./lib/libucc.so.1") == ["/moved/libucc.so.1"]
    assert found() == ["/moved/libucc.so.1"]


def test_the_loader_and_the_kernel_know_the_same_libraries():
    if compiled is None:
        pytest.skip("the module in C is not built")
    lines = Path("/proc/self/maps").read_text().splitlines()
    mapped = {line.split(maxsplit=5)[-1] for line in lines if line.count("/") and " r-xp " in line}
    loaded = set(map(os.path.realpath, filter(os.path.isabs, compiled.loaded_libraries().split())))
    assert loaded <= mapped
    assert {path for path in mapped if ".so" in path} <= loaded


def test_sets_of_numbers_survive_being_written():
    for numbers in (set(), {3}, {0, 1, 2, 7, 9, 10}):
        assert machine.read_set(machine.written(numbers)) == numbers


def test_a_machine_that_tells_nothing(tmp_path):
    assert machine.accelerators(tmp_path) == []
    assert machine.adapters(tmp_path) == []
    assert machine.libraries(root=tmp_path) == []


def test_files_full_of_noise_are_no_error(tmp_path):
    noise = "\x00 : ,-\n" * 3
    put(
        tmp_path,
        {
            "proc/driver/nvidia/gpus/x/information": noise,
            "proc/driver/nvidia/version": noise,
            "proc/self/maps": noise,
            "sys/class/kfd/kfd/topology/nodes/1/properties": noise,
            "sys/devices/system/node/node0/cpulist": noise,
        },
    )
    assert machine.accelerators(tmp_path) == [Accelerator("nvidia", "", "x", -1)]
    assert machine.facts(tmp_path)["cpus"]
    assert machine.libraries(root=tmp_path) == []


@pytest.mark.parametrize("text", ["0-99999999999", "0-99999999999,99999999999-0", "0,0-70000"])
def test_a_set_of_more_cpus_than_any_machine_has_is_refused(text):
    with pytest.raises(ValueError, match="more than"):
        machine.read_set(text)
