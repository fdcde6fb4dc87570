"""EnvironmentFacts: who has which value."""

from __future__ import annotations

import pytest

from dsprof.analysis.aggregates.environment import EnvironmentFacts
from dsprof.analysis.summary import RankClock
from dsprof.environment import EnvSnapshot
from dsprof.environment.machine import Accelerator
from dsprof.trace.schema import Group
from tests.factories.environment import facts_of, rank_trace
from tests.factories.trace import group


def test_values_carry_their_ranks():
    facts = facts_of(
        rank_trace(0, {"NCCL_ALGO": "Ring"}),
        rank_trace(1, {"NCCL_ALGO": "Tree"}),
        rank_trace(2, {"NCCL_ALGO": "Ring"}),
        rank_trace(3, recorded=False),
    )
    assert facts.variables == {"NCCL_ALGO": {"Ring": 0b101, "Tree": 0b010}}
    assert (facts.recorded, facts.missing) == (0b0111, 0b1000)


def test_merge_is_associative():
    one, two, three = (
        EnvironmentFacts.collect(
            rank_trace(r, {"NCCL_ALGO": str(r % 2)}, engine={"a": r}), RankClock()
        )
        for r in (2, 0, 1)
    )
    assert one.merge(two).merge(three) == one.merge(two.merge(three))


def test_values_in_force_are_those_after_the_first_collective():
    variables = {"NCCL_CROSS_NIC": "1", "NCCL_ALGO": "Ring", "NCCL_NET": "Socket"}
    effective = {"NCCL_CROSS_NIC": "2", "NCCL_IB_TC": "106", "NCCL_NET": ""}
    facts = facts_of(rank_trace(0, variables, effective=effective))
    in_force = {name: next(iter(values)) for name, values in facts.variables.items()}
    assert in_force == {"NCCL_CROSS_NIC": "2", "NCCL_ALGO": "Ring", "NCCL_IB_TC": "106"}
    assert facts.hidden.keys() == effective.keys()


def test_rank_numbers_are_not_kept():
    names = ("RANK", "LOCAL_RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "WORLD_SIZE")
    facts = facts_of(rank_trace(0, dict.fromkeys(names, "1")))
    assert facts.variables.keys() == {"WORLD_SIZE"}


@pytest.mark.parametrize(
    ("variables", "local_rank", "node"),
    [
        ({}, 0, "1"),
        ({}, 2, "0"),
        ({}, 3, None),  # it has no such device
        ({}, -1, None),
        ({"CUDA_VISIBLE_DEVICES": "2,0"}, 0, "0"),
        ({"CUDA_VISIBLE_DEVICES": "2,0"}, 1, "1"),
        ({"CUDA_VISIBLE_DEVICES": "2"}, 1, "0"),  # each rank sees its own
        ({"CUDA_VISIBLE_DEVICES": "1"}, 0, None),  # its node is unknown
        ({"CUDA_VISIBLE_DEVICES": "GPU-12ab"}, 0, None),
        ({"HIP_VISIBLE_DEVICES": "0", "ROCR_VISIBLE_DEVICES": "2"}, 0, None),
    ],
)
def test_the_device_of_a_rank_is_that_of_its_local_rank(variables, local_rank, node):
    trace = rank_trace(0, variables)
    trace.header.local_rank = local_rank
    accelerators = [Accelerator("nvidia", numa_node=number) for number in (1, -1, 0)]
    trace.environment = EnvSnapshot(variables=variables, accelerators=accelerators)
    assert list(facts_of(trace).device_nodes.get("", {})) == ([] if node is None else [node])


def test_groups_are_known_by_their_role_and_that_of_all_ranks_by_its_size():
    groups = (
        group(2),
        group(2, id=2, ranks=[0]),
        group(2, id=3, ranks=[1], role="pipeline"),
        Group(id=4, key="all", label="all", ranks=[], size=2, backend="gloo"),
    )
    for one, role in zip(groups, ("world", "", "pipeline", "world"), strict=True):
        trace = rank_trace(0)
        trace.groups = {one.id: one}
        assert list(facts_of(trace).roles) == [role]


def test_differing_names_unset_ranks():
    facts = facts_of(
        rank_trace(0, {"FI_PROVIDER": "efa", "NCCL_ALGO": "Ring"}),
        rank_trace(1, {"NCCL_ALGO": "Ring"}),
        rank_trace(2, recorded=False),
    )
    assert facts.differing(facts.variables) == {"FI_PROVIDER": {"efa": 0b01, "": 0b10}}


def test_ranks_with_an_engine_are_known_and_keys_are_flat():
    facts = facts_of(
        rank_trace(1, engine={"zero_optimization": {"stage": 2}, "fp16": {}}),
        rank_trace(0, engine={"zero_optimization": {"stage": 3}, "fp16": {}}),
        rank_trace(2),
    )
    assert facts.with_engine == 0b11
    assert facts.written["zero_optimization.stage"] == {"2": 0b10, "3": 0b01}
    assert facts.written["fp16"] == {"{}": 0b11}


@pytest.mark.parametrize(
    ("backend", "device", "nccl", "gpu"),
    [
        ("nccl", "cuda", True, True),
        ("cpu:gloo,cuda:nccl", "cuda:0", True, True),
        ("gloo", "cpu", False, False),
    ],
)
def test_backend_and_device(backend, device, nccl, gpu):
    facts = facts_of(rank_trace(0, backend=backend, device=device))
    assert (facts.uses_nccl, facts.uses_gpu) == (nccl, gpu)
