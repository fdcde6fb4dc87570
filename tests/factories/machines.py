"""Machines as dsprof finds them: what a rank records beside its variables."""

from __future__ import annotations

from typing import Any

from dsprof.environment.machine import Accelerator, Adapter

GIB = 1 << 30


def nodes(count: int, name: str, vendor: str = "nvidia") -> list[Accelerator]:
    """`count` accelerators, half on each NUMA node."""
    return [
        Accelerator(vendor, name, f"0000:{i + 16:02x}:00.0", 2 * i // count) for i in range(count)
    ]


def h100_infiniband() -> dict[str, Any]:
    """A DGX with InfiniBand, as its maker sets it up."""
    return {
        "accelerators": nodes(8, "NVIDIA H100 80GB HBM3"),
        "adapters": [
            Adapter(f"mlx5_{i}:1", "mlx5_core", "InfiniBand", "400 Gb/sec (4X NDR)", "ACTIVE")
            for i in range(8)
        ],
        "machine": {
            "kernel": "5.15.0-1053-nvidia",
            "cpu_vendor": "GenuineIntel",
            "cpus": "0-111",
            "cpu_nodes": "0-1",
            "numa_balancing": "0",
            "iommu": "iommu=pt",
            "modules": "nvidia_peermem gdrdrv ib_core",
            "nvidia_driver": "550.54.15 proprietary",
            "verbs_devices": "8",
            "virtual": "no",
            "may_lock_memory": "no",
            "vendor": "NVIDIA",
        },
        "limits": {"memlock_bytes": -1, "stack_bytes": 8 << 20, "shm_bytes": 512 * GIB},
        "versions": {"torch": "2.8.0", "nccl": "2.27.5"},
    }


def pcie_ethernet() -> dict[str, Any]:
    """Four workstation cards and plain Ethernet."""
    return {
        "accelerators": nodes(4, "NVIDIA A40"),
        "adapters": [],
        "machine": {
            "cpu_vendor": "AuthenticAMD",
            "modules": "none",
            "iommu": "default",
            "may_lock_memory": "no",
        },
        "limits": {"memlock_bytes": 65536, "shm_bytes": 32 * GIB},
        "versions": {"torch": "2.8.0", "nccl": "2.27.3"},
    }


def aws_efa() -> dict[str, Any]:
    """A p5 instance."""
    return h100_infiniband() | {
        "adapters": [
            Adapter(f"rdmap{i}s0:1", "efa", "Unspecified", "100 Gb/sec", "ACTIVE")
            for i in range(32)
        ],
        "machine": {
            "vendor": "Amazon EC2",
            "architecture": "x86_64",
            "modules": "efa ib_core",
            "iommu": "default",
            "virtual": "yes",
        },
    }


def azure() -> dict[str, Any]:
    """An ND H100 v5 instance."""
    found = h100_infiniband()
    return found | {"machine": found["machine"] | {"vendor": "Microsoft Corporation"}}


def slingshot() -> dict[str, Any]:
    """A node of Frontier: four MI250X, which are eight devices."""
    return {
        "accelerators": nodes(8, "gfx90a", "amd"),
        "adapters": [Adapter(f"cxi{i}", "cxi", "Slingshot", "", "ACTIVE") for i in range(4)],
        "machine": {
            "cpu_vendor": "AuthenticAMD",
            "modules": "amdgpu cxi_core",
            "numa_balancing": "0",
            "iommu": "iommu=pt",
            "rocm": "6.4.1-83",
            "kernel": "5.14.21-150500.55.49",
            "virtual": "no",
        },
        "limits": {"memlock_bytes": -1, "shm_bytes": 256 * GIB},
        "versions": {"torch": "2.8.0", "nccl": "2.22.3", "hip": "6.4.43484"},
    }


FRONTIER_PROFILE = {
    "NCCL_NET_GDR_LEVEL": "PHB",
    "NCCL_CROSS_NIC": "1",
    "NCCL_SOCKET_IFNAME": "hsn0,hsn1,hsn2,hsn3",
    "HSA_FORCE_FINE_GRAIN_PCIE": "1",
    "FI_MR_CACHE_MONITOR": "kdreg2",
    "FI_CXI_DISABLE_HOST_REGISTER": "1",
    "FI_CXI_DEFAULT_CQ_SIZE": "131072",
    "FI_CXI_DEFAULT_TX_SIZE": "2048",
    "FI_CXI_RDZV_PROTO": "alt_read",
    "FI_CXI_RDZV_EAGER_SIZE": "0",
    "FI_CXI_RDZV_THRESHOLD": "0",
    "FI_CXI_RDZV_GET_MIN": "0",
    "FI_CXI_RX_MATCH_MODE": "hybrid",
}

GOOGLE_PROFILE = {
    "NCCL_FASTRAK_CTRL_DEV": "eth0",
    "NCCL_FASTRAK_IFNAME": "eth1,eth2,eth3,eth4,eth5,eth6,eth7,eth8",
    "NCCL_NVLS_ENABLE": "0",
    "NCCL_BUFFSIZE": "8388608",
    "NCCL_MIN_NCHANNELS": "4",
    "NCCL_ALGO": "Ring,Tree",
    "NCCL_PROTO": "Simple",
}
