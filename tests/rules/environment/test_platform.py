from __future__ import annotations

import pytest

from dsprof.rules.environment.platform import QUESTIONS, answer, answer_all
from tests.factories import machines
from tests.factories.environment import facts_of, rank_trace

DGX = (
    "nccl several-accelerators linked multicast nvidia infiniband fast-network peer-memory verbs "
    "torch-before-2.9 nccl-before-2.28"
)


@pytest.mark.parametrize(
    ("machine", "true", "unknown"),
    [
        (machines.h100_infiniband, DGX, "several-hosts tensor-parallel rocm-7.13"),
        (machines.azure, f"{DGX} azure", "several-hosts tensor-parallel rocm-7.13"),
        (
            machines.aws_efa,
            "nccl several-accelerators linked multicast nvidia efa plugin-network fast-network "
            "verbs virtual torch-before-2.9 nccl-before-2.28 aws",
            "several-hosts may-lock-memory cray tensor-parallel rocm-7.13 kernel-6.8",
        ),
        (
            machines.slingshot,
            "nccl several-accelerators linked amd mi200 slingshot plugin-network fast-network "
            "torch-before-2.9 nccl-before-2.28 rccl",
            "several-hosts may-lock-memory azure aws google tensor-parallel",
        ),
        (
            machines.pcie_ethernet,
            "nccl several-accelerators pcie nvidia torch-before-2.9 nccl-before-2.28",
            "several-hosts virtual cray azure aws google tensor-parallel rocm-7.13 kernel-6.8",
        ),
        (
            dict,
            "nccl",
            "several-hosts several-accelerators linked pcie multicast nvidia amd mi200 blackwell "
            "infiniband roce efa slingshot plugin-network fast-network peer-memory verbs "
            "may-lock-memory virtual cray torch-before-2.8 torch-before-2.9 nccl-before-2.21 "
            "nccl-before-2.28 azure aws google tensor-parallel rocm-7.13 rccl arm kernel-6.8",
        ),
    ],
)
def test_a_machine_answers_each_question(machine, true, unknown):
    facts = facts_of(rank_trace(0, **machine()))
    answers = {question: answer(question, facts) for question in QUESTIONS}
    assert [question for question, said in answers.items() if said is True] == true.split()
    assert [question for question, said in answers.items() if said is None] == unknown.split()
    for question, said in answers.items():
        assert answer(f"!{question}", facts) is (None if said is None else not said)


def machine(**facts: str) -> dict[str, dict[str, str]]:
    return {"machine": facts}


@pytest.mark.parametrize(
    ("question", "environment", "said"),
    [
        ("torch-before-2.8", {"versions": {"torch": "2.7.1"}}, True),
        ("torch-before-2.8", {"versions": {"torch": "2.8.0"}}, False),
        ("torch-before-2.9", {"versions": {"torch": "2.9.0"}}, False),
        ("nccl-before-2.21", {"versions": {"nccl": "2.20.5"}}, True),
        ("nccl-before-2.21", {"versions": {"nccl": "2.21.5"}}, False),
        ("nccl-before-2.28", {"versions": {"nccl": "2.28.3"}}, False),
        ("rocm-7.13", {"versions": {"hip": "7.13.1"}}, True),
        ("rocm-7.13", machine(rocm="7.12.0"), False),
        ("rccl", {"versions": {"cuda": "13.0"}}, False),
        ("kernel-6.8", machine(kernel="6.8.0-31-generic"), True),
        ("kernel-6.8", machine(kernel="6.7.9"), False),
        ("cray", machine(kernel="5.14.21-cray_shasta_c"), True),
        ("arm", machine(architecture="aarch64"), True),
        ("arm", machine(architecture="x86_64"), False),
        ("arm", machine(cpu_vendor="GenuineIntel"), False),
        ("peer-memory", machine(modules="nv_peer_mem"), True),
        ("peer-memory", machine(modules="nvidia"), False),
        ("google", machine(vendor="Google"), True),
        ("deepspeed", {"engine": {"zero_optimization": {}}}, True),
        ("deepspeed", {"versions": {"deepspeed": "0.19.8"}}, True),
        ("gloo", {"backend": "cpu:gloo,cuda:nccl"}, True),
        ("oneccl", {"backend": "xccl"}, True),
        ("many-ranks", {"variables": {"WORLD_SIZE": "65"}}, True),
        ("many-ranks", {"variables": {"WORLD_SIZE": "64"}}, False),
        ("fastrak", {"variables": {"NCCL_FASTRAK_USE_LLCM": "1"}}, True),
        ("high-priority", {"variables": {"TORCH_NCCL_HIGH_PRIORITY": "1"}}, True),
        ("high-priority", {"variables": {"TORCH_NCCL_HIGH_PRIORITY": "0"}}, False),
        ("blocking-calls", {"variables": {"TORCH_NCCL_USE_COMM_NONBLOCKING": "0"}}, True),
        ("blocking-calls", {"variables": {"TORCH_NCCL_USE_COMM_NONBLOCKING": "1"}}, False),
        ("several-accelerators", {"variables": {"LOCAL_WORLD_SIZE": "2"}}, True),
        ("several-hosts", {"variables": {"WORLD_SIZE": "16", "LOCAL_WORLD_SIZE": "8"}}, True),
        ("several-hosts", {"variables": {"WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "8"}}, False),
        ("several-hosts", {"variables": {"SLURM_NNODES": "2"}}, True),
        ("several-hosts", {"variables": {"SLURM_NNODES": "1"}}, False),
    ],
)
def test_what_a_question_asks_for(question, environment, said):
    assert answer(question, facts_of(rank_trace(0, **environment))) is said


@pytest.mark.parametrize(
    ("questions", "said"),
    [
        ((), (True, "")),
        (("nvidia", "linked"), (True, "")),
        (("nvidia", "!linked"), (False, "")),
        (("several-hosts", "amd"), (False, "")),
        (("nvidia", "!several-hosts"), (None, "whether ranks are on several hosts")),
    ],
)
def test_one_no_decides_and_what_is_unknown_is_named(questions, said):
    facts = facts_of(rank_trace(0, **machines.h100_infiniband()))
    assert answer_all(questions, facts) == said


@pytest.mark.parametrize(
    ("boots", "said"), [(("a", "a"), False), (("", ""), False), (("a", "b"), True)]
)
def test_ranks_of_a_host_are_known_by_its_boot_where_a_launcher_gives_each_a_world(boots, said):
    traces = [rank_trace(rank, {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "1"}) for rank in range(2)]
    for trace, boot in zip(traces, boots, strict=True):
        trace.header.boot_id = boot
    assert answer("several-hosts", facts_of(*traces)) is said
    assert answer("several-hosts", facts_of(traces[0])) is True  # the other's file is missing
