"""What all ranks share, and what differs."""

from __future__ import annotations

from typing import Any

from dsprof.diagnosis.parts.environment import EnvironmentInfo
from dsprof.diagnosis.sections.environment import environment_info
from dsprof.environment.machine import Accelerator, Adapter
from tests.factories.environment import facts_of, rank_trace


def info_of(*ranks: dict[str, Any]) -> EnvironmentInfo:
    machine = {"nvidia_driver": "550.1"}
    traces = (rank_trace(rank, machine=machine, **one) for rank, one in enumerate(ranks))
    return environment_info(facts_of(*traces))


def test_devices_and_limits_that_differ_are_not_those_of_all_ranks() -> None:
    """Only variables, versions and settings were compared."""
    made = info_of(
        *(
            {
                "gpus": [name] * 2,
                "accelerators": [Accelerator(vendor="NVIDIA", name=name)] * 2,
                "adapters": [Adapter(name="mlx5_0:1", rate=rate)],
                "limits": {"memlock_bytes": limit, "nofile": 1024},
            }
            for name, rate, limit in (("H100", "400 Gb/s", -1), ("A100", "200 Gb/s", 65536))
        )
    )
    assert {one.name: one.values for one in made.differences} == {
        "GPUs": {"2 of H100": [0], "2 of A100": [1]},
        "accelerators": {"2 of H100": [0], "2 of A100": [1]},
        "adapters": {"1 of mlx5_0:1 400 Gb/s": [0], "1 of mlx5_0:1 200 Gb/s": [1]},
        "limit memlock_bytes": {"-1": [0], "65536": [1]},
    }
    assert made.limits == {"nofile": 1024}


def test_where_a_device_is_and_that_none_is_used_yet_is_no_difference() -> None:
    made = info_of(
        *(
            {
                "gpus": ["H100"] * rank,
                "accelerators": [Accelerator(vendor="NVIDIA", name="H100", numa_node=rank)],
                "limits": {"nofile": 1024},
            }
            for rank in (0, 1)
        )
    )
    assert made.differences == []


def test_files_of_nccl_and_network_devices_that_differ_are_differences() -> None:
    made = info_of(
        *(
            {
                "files": {"/etc/nccl.conf": {"NCCL_IB_HCA": adapter, "NCCL_DEBUG": "WARN"}},
                "network_devices": [f"eth{adapter[-1]} up", f"veth{adapter} up"],
            }
            for adapter in ("mlx5_0", "mlx5_1")
        )
    )
    assert {one.name: one.values for one in made.differences} == {
        "NCCL_IB_HCA in /etc/nccl.conf": {"mlx5_0": [0], "mlx5_1": [1]},
        "network devices": {"eth0 up": [0], "eth1 up": [1]},
    }
    assert made.files == {"/etc/nccl.conf": {"NCCL_DEBUG": "WARN"}}
