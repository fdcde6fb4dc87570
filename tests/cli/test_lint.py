from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.command import dsprof, environment

GOOD = {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 3}}
BAD = {**GOOD, "zero_optimisation": {"stage": 2}}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    files = {
        "good.json": json.dumps(GOOD),
        "bad.json": json.dumps(BAD, indent=1),
        "old.json": json.dumps({**GOOD, "elasticity": {}}),
        "hjson.json": json.dumps(GOOD)[:-1] + ", # a comment\n}",
        "template.json": '{"stage": ${stage}}',
        "hostile.json": json.dumps({**GOOD, "\x1b[31mstage": "\x07"}),
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def test_no_problems(folder):
    done = dsprof("lint", "good.json", "--deepspeed", "0.19.8", cwd=folder)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "good.json: no problems (DeepSpeed 0.19.8)\n\n"


def test_a_problem_is_shown_with_its_line_and_fails(folder):
    done = dsprof("lint", "bad.json", cwd=folder)
    assert (done.returncode, done.stderr) == (1, "")
    assert "bad.json: 1 problem, 1 medium (DeepSpeed" in done.stdout
    assert "line 6: zero_optimisation: did you mean zero_optimization?" in (done.stdout)
    assert "[unknown-config-key]" in done.stdout


def test_a_value_in_force_does_not_replace_what_to_do(folder):
    timers = {**GOOD, "wall_clock_breakdown": True}
    (folder / "timers.json").write_text(json.dumps(timers))
    said = dsprof("lint", "timers.json", cwd=folder).stdout
    assert "(in force: false)" in said
    assert "Do: Set it to false where speed counts." in said


def test_numbers_are_shown_and_of_what_could_be_a_secret_the_key(folder):
    strange = {"hidden_layers": 24, "is_fast": True, "login": "hunter2", "my_password": 1234}
    (folder / "strange.json").write_text(json.dumps({**GOOD, **strange}, indent=1))
    said = dsprof("lint", "strange.json", cwd=folder).stdout
    assert "line 6: hidden_layers = 24\n" in said
    assert "line 7: is_fast = true\n" in said
    assert "line 8: login\n" in said
    assert "line 9: my_password\n" in said
    assert "Do: Delete them if nothing else reads them." in said
    (folder / "one.json").write_text(json.dumps({**GOOD, "hidden_layers": 24}))
    said = dsprof("lint", "one.json", cwd=folder).stdout
    assert "Do: Delete it if nothing else reads it." in said


def test_what_is_wrong_with_a_key_for_a_secret_is_not_redacted(folder):
    (folder / "key.json").write_text(json.dumps({**GOOD, "wandb": {"api_key": "hunter2"}}))
    said = dsprof("lint", "key.json", cwd=folder).stdout
    assert "line 1: wandb.api_key: wandb knows no such key; delete it\n" in said
    assert "hunter2" not in said


def test_a_null_for_the_stage_is_not_taken_for_stage_0(folder):
    (folder / "null.json").write_text(
        '{"zero_optimization": {"stage": null, "overlap_comm": true}}'
    )
    done = dsprof("lint", "null.json", cwd=folder)
    assert done.returncode == 1
    assert "zero_optimization.stage = null: must be 0, 1, 2 or 3" in done.stdout
    assert "At stage 0" not in done.stdout


def test_a_number_of_too_many_digits_is_refused_without_advice_to_programmers(folder):
    (folder / "long.json").write_text('{"train_batch_size": ' + "9" * 5000 + "}")
    done = dsprof("lint", "long.json", cwd=folder)
    assert done.returncode == 2
    assert "digits" in done.stderr
    assert "sys." not in done.stderr


def test_the_name_of_a_file_is_not_redacted(folder):
    (folder / "passwd").write_text("root:x:0\n")
    said = dsprof("lint", "passwd", cwd=folder).stderr
    assert said.startswith("dsprof: passwd: ")
    assert "<redacted>" not in said


def test_the_cpu_is_not_judged_for_training_may_run_elsewhere(folder):
    (folder / "bf16.json").write_text(json.dumps({**GOOD, "bf16": {"enabled": True}}))
    done = dsprof("lint", "bf16.json", cwd=folder, env=environment(ONEDNN_MAX_CPU_ISA="AVX2"))
    assert done.returncode == 0
    assert "CPU" not in done.stdout


def test_what_cannot_be_read_does_not_stop_the_others(folder):
    done = dsprof("lint", "template.json", "missing.json", "bad.json", cwd=folder)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 2
    assert all(line.startswith("dsprof: ") for line in done.stderr.splitlines())
    assert "bad.json: 1 problem" in done.stdout


def test_the_release_can_be_chosen(folder):
    assert dsprof("lint", "old.json", "--deepspeed", "0.18.9", cwd=folder).returncode == 0
    assert dsprof("lint", "old.json", "--deepspeed", "0.19.8", cwd=folder).returncode == 1
    done = dsprof("lint", "old.json", "--deepspeed", "newest", cwd=folder)
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)


def test_an_empty_file_sets_nothing(tmp_path):
    (tmp_path / "empty.json").write_text("{}")
    done = dsprof("lint", "empty.json", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "empty.json: no problems" in done.stdout
    assert "note  the file sets nothing" in done.stdout
    assert "DeepSpeed needs one of them. [batch-size-mismatch]" in done.stdout
    assert "unknown" not in done.stdout


def test_thousands_of_keys_are_counted_and_not_listed(tmp_path):
    strange = {f"key_{number}": 1 for number in range(3000)}
    near = {f"train_batch_siz{number}": 1 for number in range(1000)}
    (tmp_path / "many.json").write_text(json.dumps({**GOOD, **strange, **near}))
    done = dsprof("lint", "many.json", cwd=tmp_path)
    assert "DeepSpeed does not read key_0, key_1 and 2,998 more." in done.stdout
    assert "          and 2,800 more\n" in done.stdout
    assert "          and 800 more\n" in done.stdout
    assert len(done.stdout) < 50_000


def test_hjson_is_named(folder):
    done = dsprof("lint", "hjson.json", cwd=folder)
    assert (done.returncode, "Hjson" in done.stdout) == (0, True)


def test_no_heavy_library_is_imported(folder):
    code = (
        "import sys; from dsprof.__main__ import main; main(['lint', 'bad.json'])\n"
        "heavy = {'torch', 'deepspeed', 'pydantic', 'dsprof.recording.session', 'plotly'}\n"
        "heavy |= {'jinja2', 'yaml'}\n"
        "print('heavy:', sorted(heavy & sys.modules.keys()))"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(
        command, cwd=folder, env=environment(), capture_output=True, text=True, check=True
    )
    assert done.stdout.endswith("heavy: []\n")


def test_a_file_cannot_steer_the_terminal(folder):
    done = dsprof("lint", "hostile.json", cwd=folder)
    assert "\x1b" not in done.stdout
    assert "\x07" not in done.stdout
