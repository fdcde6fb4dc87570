"""What a group is for: told by meshes, and by the names under which modules keep it."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from dsprof.hooks.wire.group_roles import find_roles, named_role
from dsprof.hooks.wire.groups import Groups
from dsprof.recording.recorder.recorder import Recorder
from dsprof.trace.schema import Group


@pytest.fixture
def keepers(monkeypatch: pytest.MonkeyPatch) -> dict[str, ModuleType]:
    """Empty modules in the place of those that keep groups."""
    names = ("deepspeed.utils.groups", "megatron.core.parallel_state")
    modules = {name: ModuleType(name) for name in names}
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    return modules


@pytest.mark.parametrize(
    ("name", "role"),
    [
        ("dp", "data"),
        ("mesh_tp", "tensor"),
        ("dp_replicate", "replicate"),
        ("dp_shard_cp", "shard"),
        ("_EXPERT_DATA_PARALLEL_GROUP", "expert_data"),
        ("_EXPERT_PARALLEL_GROUP", "expert"),
        ("_ZERO_PARAM_INTRA_PARALLEL_GROUP", "hpz"),
        ("_TENSOR_MODEL_PARALLEL_GROUP", "tensor"),
        ("_DATA_PARALLEL_GROUP_WITH_CP", "data"),
        ("pp_proc_group", "pipeline"),
        ("_TENSOR_AND_DATA_PARALLEL_GROUP", ""),
        ("_EMBEDDING_GROUP", ""),
        ("mesh_dim_0", ""),
    ],
)
def test_names_tell_roles(name: str, role: str) -> None:
    assert named_role(name) == role


@pytest.mark.usefixtures("group")
def test_a_mesh_names_its_dimensions() -> None:
    mesh = init_device_mesh("cpu", (2, 4), mesh_dim_names=("dp_replicate", "tp"))
    assert find_roles([mesh.get_group("dp_replicate")]) == ["replicate"]
    assert find_roles([mesh.get_group("tp")]) == ["tensor"]
    assert find_roles([dist.group.WORLD]) == [""]


@pytest.mark.usefixtures("group")
def test_libraries_keep_groups_where_their_names_tell_what_they_are_for(
    keepers: dict[str, ModuleType],
) -> None:
    deepspeed, megatron = keepers.values()
    made = [dist.new_group(ranks) for ranks in ([0, 1], [0, 2], [0, 4], [0, 1, 2, 3], [0, 7])]
    expert, tensor, clone, stages, model = made
    deepspeed._EXPERT_PARALLEL_GROUP = {"ep_size_2": expert}
    deepspeed._WORLD_GROUP = clone
    deepspeed.mpu = SimpleNamespace(pp_proc_group=stages)
    megatron._TENSOR_MODEL_PARALLEL_GROUP = megatron._MODEL_PARALLEL_GROUP = tensor
    megatron._MODEL_PARALLEL_GROUPS = [model]
    roles = ["expert", "tensor", "data", "pipeline", "model"]
    assert find_roles(made) == roles


@pytest.mark.usefixtures("group")
def test_programs_keep_groups_in_their_globals_or_in_an_object_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = [dist.new_group(ranks) for ranks in ([0, 1], [0, 2], [0, 4], [0, 7])]
    tensor, data, pipeline, context = made
    names = ("their.process_group_manager", "__main__", "their.parallel.context", "their.data")
    manager, program, context_module, other = (ModuleType(name) for name in names)
    for module in (manager, program, context_module, other):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    manager.manager = SimpleNamespace(tp_group=tensor, cp_dp_group=data)
    program.pp_group = pipeline
    other.cp_group = context
    context_module.values = [context] * 10_000
    assert find_roles(made) == ["tensor", "data", "pipeline", ""]


@pytest.mark.usefixtures("group")
def test_no_code_of_the_program_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    class Proxy:
        def __getattribute__(self, name: str) -> object:
            raise AssertionError(name)

        __getattr__ = __eq__ = __getattribute__

    class Lazy(dict[str, object]):
        def values(self) -> object:
            raise AssertionError

    program = ModuleType("__main__")
    program.proxy, program.lazy, program.late = Proxy(), Lazy(), SimpleNamespace(lazy=Lazy())
    program.tp_group = tensor = dist.new_group([0, 1])
    monkeypatch.setitem(sys.modules, "__main__", program)
    assert find_roles([tensor]) == ["tensor"]


@pytest.mark.usefixtures("group")
def test_a_role_that_is_told_late_is_found_at_a_step_end(keepers: dict[str, ModuleType]) -> None:
    recorder = Recorder(lambda: True)
    recorder.arm()
    state = Groups(recorder).state(group := dist.new_group([0, 1]))
    recorder.progress.end_step("user")
    keepers["megatron.core.parallel_state"]._CONTEXT_PARALLEL_GROUP = group

    def roles() -> list[str]:
        return [d.role for d in recorder.outbox.definitions if isinstance(d, Group)]

    for _ in range(14):  # steps 1 to 14 have no look: the first steps are to cost little
        recorder.progress.end_step("user")
    assert roles() == [""]
    recorder.progress.end_step("user")
    described = [d for d in recorder.outbox.definitions if isinstance(d, Group)]
    assert roles() == ["", "context"]
    assert described[0].id == described[1].id == state.group.id


@pytest.mark.usefixtures("group")
def test_the_real_modules_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    from deepspeed.utils import groups

    group = dist.new_group([0, 1])
    monkeypatch.setattr(groups, "_ZERO_PARAM_INTRA_PARALLEL_GROUP", group)
    assert find_roles([group]) == ["hpz"]
