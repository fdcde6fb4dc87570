"""Files for clusters fit the schemas of those who read them, and name files that exist."""

import os
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.dist.launch import ROOT
from tests.factories.trace_files import write_run

DEPLOY = ROOT / "deploy"


@pytest.mark.parametrize("name", ["sidecar.yaml", "daemonset.yaml"])
def test_manifests_fit_the_schema_of_kubernetes(name: str) -> None:
    kubernetes = pytest.importorskip("kubernetes_validate")
    for one in yaml.safe_load_all((DEPLOY / "kubernetes" / name).read_text()):
        kubernetes.validate(one, kubernetes.latest_version(), strict=True)


def test_what_is_named_exists() -> None:
    base = yaml.safe_load((DEPLOY / "kubernetes" / "kustomization.yaml").read_text())
    named = [DEPLOY / "kubernetes" / name for name in base["resources"]]
    services = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
    named.append(DEPLOY / services["dsprof"]["build"]["context"])
    for service in services.values():
        sources = [volume.partition(":")[0] for volume in service["volumes"]]
        named += [DEPLOY / source for source in sources if source.startswith("./")]
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", []))
    assert [path for path in named if not path.exists()] == []


def test_a_job_ends_with_its_report(tmp_path: Path) -> None:
    write_run(tmp_path / "dsprof-7")
    path = os.pathsep.join([str(ROOT / ".venv" / "bin"), os.environ["PATH"]])
    given = {"PATH": path, "SLURM_JOB_ID": "7", "SLURM_SUBMIT_DIR": str(tmp_path)}
    subprocess.run([DEPLOY / "slurm" / "epilogue.sh"], env=given, check=True)
    assert (tmp_path / "dsprof-7" / "report.html").stat().st_size
    assert (tmp_path / "dsprof-7" / "hang.txt").stat().st_size


def test_a_report_says_that_a_job_reached_its_time_limit(tmp_path: Path) -> None:
    for trace in write_run(tmp_path / "dsprof-7"):
        whole = trace.read_text()
        trace.write_text(whole[: whole.index('"name":"trailer"')])
    log, scontrol = tmp_path / "slurm-7.out", tmp_path / "scontrol"
    said = "JOB 7 ON n1 CANCELLED AT 2026-11-25T22:04:43 DUE TO TIME LIMIT"
    log.write_text(f"slurmstepd-n1: error: *** {said} ***\n")
    scontrol.write_text(f"#!/bin/sh\necho '   StdOut={log}'\n")
    scontrol.chmod(0o755)
    path = os.pathsep.join([str(tmp_path), str(ROOT / ".venv" / "bin"), os.environ["PATH"]])
    given = {"PATH": path, "SLURM_JOB_ID": "7", "SLURM_SUBMIT_DIR": str(tmp_path)}
    subprocess.run([DEPLOY / "slurm" / "epilogue.sh"], env=given, check=True)
    assert "The job reached its time limit" in (tmp_path / "dsprof-7" / "report.html").read_text()


def test_a_job_that_recorded_nothing_ends_as_before(tmp_path: Path) -> None:
    given = {"PATH": os.environ["PATH"], "SLURM_JOB_ID": "7", "SLURM_SUBMIT_DIR": str(tmp_path)}
    subprocess.run([DEPLOY / "slurm" / "epilogue.sh"], env=given, check=True)
    assert [*tmp_path.iterdir()] == []
