"""dsprof.environment: what is read of a machine, and what never is."""

from __future__ import annotations

import os
import subprocess
import sys
from types import SimpleNamespace

import msgspec
import pytest

from dsprof import environment
from dsprof.environment import REDACTED, EnvSnapshot, machine

SECRETS = {
    "NVIDIA_API_KEY": "short",
    "SLURM_JWT": "anything",
    "DS_REMOTE_PASSWORD": "hunter2",
    "TORCH_HUB_TOKEN": "t0",
    "NCCL_NET_PLUGIN": "https://alice:hunter2@mirror/plugin.so",
    "DS_AWS": "AKIAIOSFODNN7EXAMPLE",
    "DS_AWS_LONG": "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
    "DS_HUB": "hf_AbCdEfGhIjKlMnOpQrStUvWx",
    "DS_GIT": "ghp_0123456789abcdefghijABCDEFGHIJ012345",
    "DS_WANDB": "0123456789abcdef0123456789abcdef01234567",
    "DS_SIGNED": "eyJhbGciOiJIUzI1NiJ9.e30.abc",
    "DS_RANDOM": "q7ZtY2mXw9LrB4nVc8KdS1pGh5JfT3aE",
    "OMPI_ARGV": "train.py --password hunter2",
    "SLURM_JOB_COMMENT": "my pin is 4711",
    "NCCL_ALGO": "correct horse battery",
    "NCCL_NOT_KNOWN": "4711",
    "OMPI_MCA_orte_precondition_transports": "a1b2c3d4e5f60718-8170f6e5d4c3b2a1",
}

ORDINARY = {
    "NCCL_IB_HCA": "mlx5_0:1,mlx5_1:1",
    "CUDA_VISIBLE_DEVICES": "GPU-5ebe9f43-ac33-4d46-8a28-0123456789ab",
    "MASTER_ADDR": "pytorchjob-llama-7b-finetune-worker-0.default.svc",
    "LD_LIBRARY_PATH": "/nix/store/abc123abc123abc123abc123abc123ab-glibc/lib:/opt/rocm/lib",
    "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True,garbage_collection_threshold:0.8",
    "SLURM_JOB_NODELIST": "frontier[00001-00128]",
    "NCCL_DEBUG_FILE": "/scratch/run12/nccl_%h_%p.log",
    "UCX_IB_PKEY": "0x7fff",
    "NCCL_BUFFSIZE": "4M",
    "NCCL_SOCKET_IFNAME": "^docker0,lo",
    "NCCL_ALGO": "allreduce:tree;broadcast:ring",
    "SLURM_TASKS_PER_NODE": "2(x32),1",
    "FI_PROVIDER": "efa",
    "MASTER_PORT": "29500",
    "NCCL_COMM_ID": "10.0.0.1:29400",
    "TORCHELASTIC_RUN_ID": "5ebe9f43-ac33-4d46-8a28-0123456789ab",
}


@pytest.fixture
def conf(tmp_path):
    """Write a configuration file of NCCL and return the variable that names it."""

    def write(text: str) -> dict[str, str]:
        path = tmp_path / "nccl.conf"
        path.write_text(text)
        return {"NCCL_CONF_FILE": str(path), "HOME": str(tmp_path)}

    return write


def test_names_outside_the_allow_list_are_not_read():
    class Guarded(dict):
        def __getitem__(self, name):
            return self.get(name)

        def get(self, name, default=None):
            assert environment.is_recorded(name) or name == "HOME", f"{name} was read"
            return super().get(name, default)

    environ = Guarded({"AWS_SECRET_ACCESS_KEY": "x", "HF_TOKEN": "x", "NCCL_DEBUG": "INFO"})
    assert environment.snapshot(environ).variables == {"NCCL_DEBUG": "INFO"}


def test_what_libraries_set_for_a_moment_is_not_read():
    """Accelerate does so; whether it is there depends on the moment, and ranks would differ."""
    assert environment.is_recorded("PYTORCH_ALLOC_CONF")
    assert not environment.is_recorded("PYTORCH_NVML_BASED_CUDA_CHECK")


@pytest.mark.parametrize("name", SECRETS)
def test_credentials_appear_nowhere(name, conf):
    value = SECRETS[name]
    environ = {name: value} | conf(f"{name}={value}\n")
    found = environment.snapshot(environ)
    assert value.encode() not in msgspec.json.encode(found)
    assert found.variables[name] == REDACTED
    assert found.redacted == [name]


@pytest.mark.parametrize("name", ORDINARY)
def test_ordinary_values_stay(name):
    found = environment.snapshot({name: ORDINARY[name]})
    assert found.variables == {name: ORDINARY[name]}
    assert found.redacted == []


def test_configuration_files_are_parsed(conf):
    environ = conf("# fabric\nNCCL_CROSS_NIC = 1\nHF_TOKEN=x\nno assignment\nNCCL_ALGO=Ring,Tree\n")
    values = environment.snapshot(environ).files[environ["NCCL_CONF_FILE"]]
    assert values == {"NCCL_CROSS_NIC": "1", "NCCL_ALGO": "Ring,Tree"}


def test_a_pipe_as_configuration_file_is_not_waited_for(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    assert environment.snapshot({"NCCL_CONF_FILE": str(pipe)}).files.get(str(pipe)) is None


def test_absent_configuration_file_is_no_entry(tmp_path):
    environ = {"NCCL_CONF_FILE": str(tmp_path / "none"), "HOME": str(tmp_path)}
    assert str(tmp_path / "none") not in environment.snapshot(environ).files


def test_a_package_that_is_loaded_says_its_version_itself(monkeypatch):
    monkeypatch.setitem(sys.modules, "deepspeed", SimpleNamespace(__version__="1.2.3+ours"))
    assert environment.snapshot({}).versions["deepspeed"] == "1.2.3+ours"


def test_snapshot_survives_probes_that_break(monkeypatch):
    def broken(*arguments):
        raise RuntimeError("no such thing here")

    for name in ("_versions", "_gpus", "_read_conf", "_size_bytes"):
        monkeypatch.setattr(environment, name, broken)
    monkeypatch.setattr(machine, "interfaces", broken)
    monkeypatch.delattr(os, "sched_getaffinity")
    found = environment.snapshot({"NCCL_DEBUG": "WARN"})
    assert found.variables == {"NCCL_DEBUG": "WARN"}
    assert found.versions == {}
    assert found.limits.keys() == {
        *("memlock_bytes", "stack_bytes", "nofile", "cpus", "numa_nodes"),
    }


def test_snapshot_imports_neither_torch_nor_deepspeed():
    code = (
        "import os, sys; from dsprof.environment import snapshot; snapshot(os.environ); "
        "print({'torch', 'deepspeed', 'psutil', 'yaml'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_effective_values_show_what_c_code_set(monkeypatch):
    monkeypatch.setenv("NCCL_CROSS_NIC", "2")
    monkeypatch.setenv("NCCL_NET_PLUGIN", "https://alice:hunter2@mirror/p.so")
    before = EnvSnapshot(
        variables={"NCCL_CROSS_NIC": "1", "NCCL_ALGO": "Ring"},
        files={"/etc/nccl.conf": {"NCCL_CROSS_NIC": "0"}},
    )
    found = environment.after_first_step(before).effective
    assert found["NCCL_CROSS_NIC"] == "2"
    assert found["NCCL_NET_PLUGIN"] == REDACTED
    assert found["NCCL_ALGO"] == ""


def test_effective_values_leave_out_what_did_not_change(monkeypatch):
    monkeypatch.setenv("NCCL_CROSS_NIC", "2")
    found = environment.after_first_step(environment.snapshot(os.environ))
    assert found is None or "NCCL_CROSS_NIC" not in found.effective


def test_what_is_known_after_the_first_step_is_one_more_snapshot(monkeypatch):
    before = environment.snapshot(os.environ)
    monkeypatch.setattr(environment.machine, "libraries", lambda loaded: [])
    assert environment.after_first_step(before) is None
    monkeypatch.setattr(environment.machine, "libraries", lambda loaded: ["/nccl/lib/libnccl.so.2"])
    after = environment.after_first_step(before)
    assert after.libraries == ["/nccl/lib/libnccl.so.2"]
    assert after.variables == before.variables


def test_a_machine_that_breaks_every_probe_leaves_the_variables(monkeypatch):
    def broken(*arguments):
        raise RuntimeError("no such thing here")

    for name in ("accelerators", "adapters", "facts", "libraries"):
        monkeypatch.setattr(environment.machine, name, broken)
    found = environment.snapshot({"NCCL_DEBUG": "WARN"})
    assert (found.variables, found.machine, found.accelerators) == ({"NCCL_DEBUG": "WARN"}, {}, [])
    monkeypatch.setenv("NCCL_DEBUG", "WARN")
    assert environment.after_first_step(environment.snapshot(os.environ)) is None
