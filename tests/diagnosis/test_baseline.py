from __future__ import annotations

import msgspec
import pytest

from dsprof.__main__ import main
from dsprof.analysis.aggregates.baseline_costs import BaselineCosts
from dsprof.diagnosis.baseline import baseline_note, with_baseline
from dsprof.diagnosis.document import from_json
from tests.factories.baseline import baseline, machine
from tests.factories.trace import header, summary, zero_rank
from tests.factories.trace_files import write_run


def test_a_baseline_of_this_machine_is_used_without_a_word():
    made = baseline()
    run, info = with_baseline(summary(zero_rank()), made, "b.json")
    assert run[BaselineCosts].baseline is made
    assert info.is_used
    assert baseline_note(info) == ""


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"hosts": ("node-b",)}, "the run was on node-a, the baseline is of node-b"),
        ({"versions": {"torch": "2.4.0"}}, "torch was 2.4.0 there, 2.13.0 in the run"),
    ],
)
def test_one_of_another_machine_is_used_and_said(fields, told):
    made = baseline(machine=machine(**fields))
    run, info = with_baseline(summary(zero_rank()), made, "b.json")
    assert run[BaselineCosts].baseline is made
    assert baseline_note(info) == f"The baseline b.json was measured elsewhere: {told}."


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"backend": "nccl"}, "its backend is nccl, that of the run gloo"),
        ({"device": "cuda"}, "its device is cuda, that of the run cpu"),
    ],
)
def test_one_of_another_backend_or_device_is_not_used(fields, told):
    made = baseline(machine=machine(**fields))
    run, info = with_baseline(summary(zero_rank()), made, "b.json")
    assert run[BaselineCosts].baseline is None
    assert baseline_note(info) == f"The baseline b.json was not used: {told}."


def test_the_number_of_a_device_is_no_difference():
    made = baseline(machine=machine(device="cuda", backend="nccl"))
    on_gpu = zero_rank(head=header(device="cuda:0", backend="nccl"))
    assert with_baseline(summary(on_gpu), made, "b.json")[1].is_used


def test_the_report_takes_a_baseline_and_says_whose_it_is(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write_run(tmp_path / "run")
    made = baseline(machine=machine(hosts=("elsewhere",)))
    (tmp_path / "b.json").write_bytes(msgspec.json.encode(made))
    arguments = ["report", "run", "--format", "json", "-o", "out.json"]
    assert main([*arguments, "--baseline", "b.json"]) == 0
    saved = from_json((tmp_path / "out.json").read_bytes(), "out.json")
    assert saved.baseline is not None
    assert saved.baseline.source == "b.json"
    assert any("baseline b.json was measured elsewhere" in note for note in saved.quality.notes)


@pytest.mark.parametrize(("data", "said"), [(b"{}", "not a baseline"), (None, "cannot read")])
def test_a_baseline_that_cannot_be_used_stops_the_report(tmp_path, monkeypatch, capsys, data, said):
    monkeypatch.chdir(tmp_path)
    write_run(tmp_path / "run")
    if data is not None:
        (tmp_path / "b.json").write_bytes(data)
    assert main(["report", "run", "--baseline", "b.json"]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
    assert not (tmp_path / "report.html").exists()
