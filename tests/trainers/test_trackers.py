"""Figures of dsprof in the trackers of trainers, read back from what the trackers wrote."""

import csv
from pathlib import Path

import pytest

from dsprof.analysis.aggregates.steps import Steps
from dsprof.analysis.summarise import summarise
from dsprof.trace.run import find_run
from tests.dist.launch import launch

for package in ("transformers", "lightning", "tensorboard", "mlflow"):
    pytest.importorskip(package, reason=f"no {package} here: make test-trainers installs it")

pytestmark = [pytest.mark.dist, pytest.mark.timeout(600)]

PROGRAM = Path(__file__).with_name("tracked.py")


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


@pytest.fixture(scope="module")
def of_hugging_face(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("tracked")
    launch(PROGRAM, args=[out, "hugging_face"]).check()
    return out


def test_tensorboard_has_the_figures(of_hugging_face: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(of_hugging_face / "tensorboard"))
    events.Reload()
    tags = {tag.removeprefix("train/"): tag for tag in events.Tags()["scalars"]}
    names = ("dsprof/step", "dsprof/step_seconds", "dsprof/bytes", "dsprof/exposed_seconds")
    columns = {name: [one.value for one in events.Scalars(tags[name])] for name in names}
    check(
        of_hugging_face,
        [dict(zip(names, row, strict=True)) for row in zip(*columns.values(), strict=True)],
    )


def test_mlflow_has_the_figures(of_hugging_face: Path) -> None:
    names = ("step", "step_seconds", "bytes", "exposed_seconds")
    (folder,) = of_hugging_face.glob("mlruns/*/*/metrics/dsprof")
    rows: dict[str, list[float]] = {
        f"dsprof/{name}": [
            float(line.split()[1]) for line in (folder / name).read_text().splitlines()
        ]
        for name in names
    }
    check(
        of_hugging_face,
        [dict(zip(rows, row, strict=True)) for row in zip(*rows.values(), strict=True)],
    )


def test_lightning_logs_the_figures(tmp_path: Path) -> None:
    launch(PROGRAM, args=[tmp_path, "lightning"]).check()
    (file,) = tmp_path.glob("lightning/**/metrics.csv")
    rows = [row for row in csv.DictReader(file.open()) if row.get("dsprof/step")]
    check(
        tmp_path,
        [
            {
                name: float(value)
                for name, value in row.items()
                if name.startswith("dsprof/") and value
            }
            for row in rows
        ],
    )
