"""`dsprof env`: what it prints, writes and returns."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from dsprof.analysis.aggregates.environment import EnvironmentFacts
from dsprof.analysis.summarise import summarise
from dsprof.trace.run import find_run
from tests.cli.command import dsprof, environment, install

LAUNCHERS = ("RANK", "WORLD_SIZE", "OMPI_", "PMI_", "SLURM_", "LOCAL_", "NCCL_", "MASTER_")


@pytest.fixture(autouse=True)
def _no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(LAUNCHERS):
            monkeypatch.delenv(name)


def env(folder: Path, *arguments: str, **variables: str) -> CompletedProcess[str]:
    done = dsprof("env", *arguments, cwd=folder, env=environment(**variables))
    assert done.stderr == "" or done.returncode == 2
    return done


def ranks(folder: Path, world_size: int, **each: str) -> None:
    """Start `dsprof env` in each rank of a run, one after the other."""
    for rank in range(world_size):
        place = {"RANK": str(rank), "WORLD_SIZE": str(world_size), "MASTER_PORT": "1"}
        own = {name: value for name, value in each.items() if rank == world_size - 1}
        done = env(folder, "-o", "found", "--backend", "nccl", **place, **own)
        assert done.returncode == 0


def test_a_machine_without_a_fault(tmp_path: Path) -> None:
    done = env(tmp_path, "--backend", "gloo", GLOO_SOCKET_IFNAME="lo")
    assert done.returncode == 0
    assert done.stdout.startswith("No problems found in this environment, checked for gloo.")
    assert "GLOO_SOCKET_IFNAME: lo" in done.stdout
    assert "python: 3." in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_a_backend_that_nobody_knows_is_a_mistake(tmp_path: Path) -> None:
    done = env(tmp_path, "--backend", "ncll")
    assert done.returncode == 2
    assert "'ncll'" in done.stderr
    assert "nccl" in done.stderr


def test_a_fault_is_explained_and_returns_1(tmp_path: Path) -> None:
    done = env(tmp_path, "--backend", "nccl", NCCL_BUFFERSIZE="8")
    assert done.returncode == 1
    assert "NCCL_BUFFERSIZE: set NCCL_BUFFSIZE instead." in " ".join(done.stdout.split())


def test_the_hardware_of_a_login_node_says_nothing_of_the_run(tmp_path: Path) -> None:
    done = env(tmp_path, "--backend", "nccl", NCCL_P2P_DISABLE="1")
    if "accelerator: " in done.stdout:
        pytest.skip("this machine has accelerators")
    assert done.returncode == 0
    assert "unknown: disabled-transport: Whether NCCL_P2P_DISABLE=1" in (
        " ".join(done.stdout.split())
    )


def test_values_of_names_that_are_not_known_are_not_shown(tmp_path: Path) -> None:
    done = env(tmp_path, "-o", "found", HF_TOKEN="hunter2", DS_SECRET="hunter2", NCCL_ALGO="Ring")
    written = next((tmp_path / "found").iterdir()).read_text()
    assert "NCCL_ALGO" in written
    assert "hunter2" not in done.stdout + written


@pytest.mark.parametrize(
    ("arguments", "variables", "message"),
    [
        (["--backend", "ncl"], {}, "unknown --backend value 'ncl' - did you mean 'nccl'?"),
        (["--frobnicate"], {}, "unknown option '--frobnicate'"),
        ([], {"RANK": "two", "WORLD_SIZE": "4"}, "RANK=two and WORLD_SIZE=4 are not a valid rank"),
        ([], {"RANK": "4", "WORLD_SIZE": "4"}, "are not a valid rank"),
        (["--config", "none.yaml"], {}, "none.yaml"),
        (["-o", "s3://bucket/run"], {}, "an address cannot be given here"),
        (["-o", "file/below"], {}, "cannot write to file/below"),
        ([], {"DSPROF_STEPS": "many"}, "DSPROF_STEPS"),
    ],
)
def test_mistakes_are_one_line_and_2(
    tmp_path: Path, arguments: list[str], variables: dict[str, str], message: str
) -> None:
    (tmp_path / "file").write_text("")
    done = env(tmp_path, *arguments, **variables)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_ranks_that_write_are_judged_together(tmp_path: Path) -> None:
    ranks(tmp_path, 3, NCCL_ALGO="Tree")
    run = find_run([tmp_path / "found"])
    assert [header.rank for header in run.headers] == [0, 1, 2]
    facts = summarise(run)[EnvironmentFacts]
    assert facts.differing(facts.variables)["NCCL_ALGO"] == {"Tree": 0b100, "": 0b011}
    done = dsprof("report", "found", "--format", "text", cwd=tmp_path)
    assert done.returncode == 0
    assert "variable-differs-across-ranks" in done.stdout
    assert "differs: NCCL_ALGO: Tree (rank 2); not set (ranks 0-1)" in " ".join(done.stdout.split())


def test_dsprof_out_names_the_folder_too(tmp_path: Path) -> None:
    done = env(tmp_path, DSPROF_OUT="there")
    assert "dsprof report there" in done.stdout
    assert [path.name for path in (tmp_path / "there").iterdir()] == ["trace.rank00000.json"]


def test_a_training_run_in_the_same_folder_is_not_mixed_up_with_it(tmp_path: Path) -> None:
    env(tmp_path, "-o", "found")
    env(tmp_path, "-o", "found")
    names = sorted(path.name for path in (tmp_path / "found").iterdir())
    assert names == ["trace.1.rank00000.json", "trace.rank00000.json"]
    run = find_run([tmp_path / "found"])
    assert [path.name for path in run.files] == ["trace.1.rank00000.json"]


def test_the_other_ranks_are_brief(tmp_path: Path) -> None:
    place = {"RANK": "1", "WORLD_SIZE": "2"}
    fine = env(tmp_path, **place)
    assert (fine.returncode, fine.stdout.count("\n")) == (0, 1)
    assert fine.stdout.startswith("rank 1 on ")
    faulty = env(tmp_path, "--backend", "nccl", NCCL_BUFFERSIZE="8", **place)
    assert faulty.returncode == 0  # or the launcher would stop the other ranks
    assert "[HIGH] No library reads NCCL_BUFFERSIZE." in faulty.stdout


def test_the_file_is_a_trace_with_nothing_in_it(tmp_path: Path) -> None:
    env(tmp_path, "-o", "found", "--backend", "nccl", DSPROF_ANONYMIZE="true")
    lines = json.loads((tmp_path / "found" / "trace.rank00000.json").read_text())
    assert [line["cat"] for line in lines] == ["header", "environment", "trailer"]
    assert lines[0]["args"]["host"].startswith("host-")
    assert lines[0]["args"]["backend"] == "nccl"


@pytest.mark.parametrize(("version", "backend"), [("2.13.0+cpu", "gloo"), ("2.13.0+cu130", None)])
def test_a_torch_without_accelerators_trains_with_gloo(
    tmp_path: Path, version: str, backend: str | None
) -> None:
    install(tmp_path, "torch", version)
    done = dsprof("env", cwd=tmp_path, env=environment(tmp_path))
    assert f"torch: {version}" in done.stdout
    assert backend is None or f"checked for {backend}" in done.stdout


@pytest.mark.parametrize("world_size", ["2000000", "9" * 5000])
def test_a_world_that_no_report_would_read_is_refused(tmp_path: Path, world_size: str) -> None:
    done = env(tmp_path, RANK="0", WORLD_SIZE=world_size)
    assert done.returncode == 2
    assert "are not a valid rank" in done.stderr


def test_a_local_rank_beyond_reason_is_none(tmp_path: Path) -> None:
    assert env(tmp_path, "--backend", "gloo", LOCAL_RANK="9" * 5000).returncode in (0, 1)


def test_a_closed_standard_output_is_said_in_one_line(tmp_path: Path) -> None:
    command = f"exec {sys.executable} -m dsprof env --backend gloo >&-"
    done = subprocess.run(
        ["sh", "-c", command], cwd=tmp_path, env=environment(), stderr=subprocess.PIPE, check=False
    )
    message = b"dsprof: cannot write to standard output: it is closed\n"
    assert (done.returncode, done.stderr) == (2, message)
