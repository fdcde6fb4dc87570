"""Figures and report of dsprof in the trackers of trainers, read back from what they wrote."""

from __future__ import annotations

import csv
import pickle
from base64 import b64encode
from hashlib import md5
from pathlib import Path

import pytest

from dsprof.analysis.aggregates.steps import Steps
from dsprof.analysis.summarise import summarise
from dsprof.trace.run import find_run
from tests.dist.launch import launch
from tests.ports import free_port
from tests.trainers.trackers import (
    mlflow_server,
    tensorboard_events,
    tensorboard_text,
    wandb_artifacts,
    wandb_history,
)

for package in ("transformers", "lightning", "accelerate", "tensorboard", "mlflow", "wandb"):
    pytest.importorskip(package, reason=f"no {package} here: make test-trainers installs it")

pytestmark = [pytest.mark.dist]

PROGRAM = Path(__file__).with_name("tracked.py")
NAMES = ("dsprof/step", "dsprof/step_seconds", "dsprof/bytes", "dsprof/exposed_seconds")


def run(out: Path, trainer: str, tracking_uri: str = "") -> Path:
    """Train; MLflow keeps files where there is no server."""
    uri = tracking_uri or (out / "mlruns").as_uri()
    env = {"MLFLOW_TRACKING_URI": uri, "MLFLOW_ALLOW_FILE_STORE": "true"}
    launch(PROGRAM, args=[out, trainer], env=env).check()
    return out


@pytest.fixture(scope="module")
def of_hugging_face(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run(tmp_path_factory.mktemp("hugging_face"), "hugging_face")


@pytest.fixture(scope="module")
def of_accelerate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run(tmp_path_factory.mktemp("accelerate"), "accelerate")


def check(out: Path, logged: list[dict[str, float]]) -> None:
    """Compare logged figures with those of the trace of rank 0."""
    rows = summarise(find_run([out / "trace"]), [Steps])[Steps].ranks[0]
    assert logged
    for figures in logged:
        place = rows.number.tolist().index(int(figures["dsprof/step"]))
        assert figures["dsprof/step_seconds"] == pytest.approx(rows.total_ns[place] / 1e9, rel=1e-4)
        assert figures["dsprof/bytes"] == rows.nbytes[place]
        assert rows.exposed_ns is not None
        exposed = rows.exposed_ns[place] / 1e9
        assert figures["dsprof/exposed_seconds"] == pytest.approx(exposed, rel=1e-3)


def check_page(page: bytes, out: Path) -> None:
    """It is the page beside the traces, of a run that goes on and is not called killed."""
    assert page == (out / "trace" / "report.html").read_bytes()
    assert b"dsprof: 2 ranks" in page
    assert b"Records break off" not in page


def check_wandb(out: Path) -> None:
    rows = wandb_history(out)
    logged = [
        {name.removeprefix("train/"): float(value) for name, value in row.items()}
        for row in rows
        if "report" not in str(row) and "dsprof/step" in str(row)
    ]
    check(out, logged)
    (report,) = [row for row in rows if "dsprof/report.path" in row]
    (files,) = out.glob("wandb/offline-run-*/files")
    page = (files / report["dsprof/report.path"].strip('"')).read_text()
    made = out / "trace" / "report.html"
    assert page.rstrip() == made.read_text().rstrip()
    digest = b64encode(md5(made.read_bytes(), usedforsecurity=False).digest()).decode()
    assert wandb_artifacts(out) == {"dsprof-report": {"report.html": digest}}


def check_mlflow_files(out: Path) -> None:
    (folder,) = out.glob("mlruns/*/*/metrics/dsprof")
    columns = [
        [float(line.split()[1]) for line in (folder / name[7:]).read_text().splitlines()]
        for name in NAMES
    ]
    check(out, [dict(zip(NAMES, row, strict=True)) for row in zip(*columns, strict=True)])
    check_page((folder.parents[1] / "artifacts/dsprof/report.html").read_bytes(), out)


def check_tensorboard(out: Path, folder: Path) -> None:
    events = tensorboard_events(folder)
    tags = {tag.removeprefix("train/"): tag for tag in events.Tags()["scalars"]}
    columns = [[one.value for one in events.Scalars(tags[name])] for name in NAMES]
    check(out, [dict(zip(NAMES, row, strict=True)) for row in zip(*columns, strict=True)])
    assert "2 ranks" in tensorboard_text(folder, "dsprof/report")


def test_weights_and_biases_has_figures_and_page_of_hugging_face(of_hugging_face: Path) -> None:
    check_wandb(of_hugging_face)


def test_mlflow_has_figures_and_page_of_hugging_face(of_hugging_face: Path) -> None:
    check_mlflow_files(of_hugging_face)


def test_tensorboard_has_figures_and_text_of_hugging_face(of_hugging_face: Path) -> None:
    check_tensorboard(of_hugging_face, of_hugging_face / "tensorboard")


def test_all_trackers_have_figures_and_report_of_accelerate(of_accelerate: Path) -> None:
    check_wandb(of_accelerate)
    check_mlflow_files(of_accelerate)
    check_tensorboard(of_accelerate, of_accelerate / "tensorboard" / "training")


def test_lightning_logs_figures_and_report_also_to_a_server(tmp_path: Path) -> None:
    from mlflow import MlflowClient, artifacts

    with mlflow_server(tmp_path, free_port()) as address:
        run(tmp_path, "lightning", address)
        client = MlflowClient(address)
        (of_server,) = client.search_runs(
            [one.experiment_id for one in client.search_experiments()]
        )
        history = client.get_metric_history(of_server.info.run_id, "dsprof/step")
        assert [int(one.value) for one in history]
        page = artifacts.download_artifacts(
            run_id=of_server.info.run_id,
            artifact_path="dsprof/report.html",
            tracking_uri=address,
            dst_path=str(tmp_path / "downloaded"),
        )
    check_page(Path(page).read_bytes(), tmp_path)
    check_wandb(tmp_path)
    check_tensorboard(tmp_path, tmp_path / "tensorboard" / "version_0")
    (file,) = tmp_path.glob("lightning/**/metrics.csv")
    rows = [row for row in csv.DictReader(file.open()) if row.get("dsprof/step")]
    check(tmp_path, [{name: float(row[name]) for name in NAMES} for row in rows])


def test_a_process_that_is_spawned_can_take_the_callback() -> None:
    from dsprof.api.trainers import lightning_callback

    callback = lightning_callback()
    assert type(pickle.loads(pickle.dumps(callback))) is type(callback)
