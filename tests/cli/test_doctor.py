"""`dsprof doctor`: what would be recorded here, and why not."""

from __future__ import annotations

import itertools
import subprocess
import sys
from pathlib import Path

import pytest

from dsprof._version import __version__
from dsprof.cli.doctor import _checks
from dsprof.recording.interpreter import NO_GIL
from tests.cli.command import dsprof, environment, install

HOOKS_ARE_COMPLETE = """
import subprocess, sys
from dsprof.__main__ import main
answer = subprocess.CompletedProcess([], 0, stdout='{"c10d": []}')
subprocess.run = lambda *command, **options: answer
sys.exit(main(["doctor"]))
"""
"""Gives the answer of the process that imports torch and DeepSpeed to see what hooks find: 8 s."""

ENTRY_POINT = "[torch.backends]\ndsprof = dsprof_autostart:autostart\n"


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A folder for PYTHONPATH in which torch, deepspeed and dsprof look installed."""
    folder = tmp_path / "site"
    install(folder, "torch", "2.13.0")
    install(folder, "deepspeed", "0.19.8")
    install(folder, "dsprof", __version__, entry_points=ENTRY_POINT)
    return folder


def doctor(site: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run it without the packages of the tests' own Python hiding what `site` lacks."""
    return dsprof("doctor", cwd=site.parent, env=environment(site, **variables))


def quick_doctor(*sites: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run it for all but hooks, which are taken to be complete."""
    return subprocess.run(
        [sys.executable, "-c", HOOKS_ARE_COMPLETE],
        cwd=sites[0].parent,
        env=environment(*sites, **variables),
        capture_output=True,
        text=True,
        check=False,
    )


def lines(done: subprocess.CompletedProcess[str], state: str) -> list[str]:
    marked = [line.split(maxsplit=1) for line in done.stdout.splitlines() if line]
    return [parts[1] for parts in marked if parts[0] == state]


def test_all_is_well(site: Path) -> None:
    done = doctor(site, DSPROF="1")
    assert (done.returncode, done.stderr) == (0, "")
    assert lines(done, "no") == []
    assert "torch 2.13.0 loads plugins" in lines(done, "ok")
    assert "deepspeed 0.19.8" in lines(done, "ok")
    (hooks,) = [line for line in lines(done, "ok") if line.startswith("complete hooks")]
    assert {"c10d", "work", "deepspeed.zero", "fsdp"} <= set(hooks.partition(": ")[2].split(", "))
    assert f"traces go to {site.parent / 'dsprof-out'}" in lines(done, "ok")
    assert done.stdout.endswith(
        "DSPROF=1 would record here, from the first collective or step on.\n"
    )
    assert not (site.parent / "dsprof-out").exists()


def test_a_hook_that_misses_what_it_needs_is_named(site: Path) -> None:
    (site / "deepspeed").mkdir()
    (site / "deepspeed" / "__init__.py").touch()
    done = doctor(site, DSPROF="1")
    assert done.returncode == 0
    why = "No module named 'deepspeed.runtime'"
    assert f"hook deepspeed.zero: {why}" in lines(done, "note")


def test_kernels_that_are_not_built_are_named_where_they_are_asked_for(site: Path) -> None:
    nowhere = {"TORCH_EXTENSIONS_DIR": str(site / "nothing")}
    assert not any("dsprof build" in line for line in lines(doctor(site, **nowhere), "note"))
    done = doctor(site, DSPROF_INTERCEPTION="native", **nowhere)
    (note,) = [line for line in lines(done, "note") if "dsprof build" in line]
    assert note.startswith("hook native: no kernels are built for torch ")
    assert note.endswith("kernels in Python are used; run dsprof build")


def test_what_this_cpu_is_slow_in_is_a_note(site: Path) -> None:
    notes = lines(quick_doctor(site, ONEDNN_MAX_CPU_ISA="AVX2"), "note")
    said = "this CPU does not accelerate bf16 and fp16: use fp32 for CPU training"
    assert any(said in note for note in notes)


def test_a_torch_that_cannot_be_imported_is_an_obstacle(site: Path) -> None:
    (site / "torch.py").write_text("raise ImportError('libcudart.so.13 is missing')")
    done = doctor(site, DSPROF="1")
    assert done.returncode == 1
    said = "torch cannot be hooked: ImportError: libcudart.so.13 is missing"
    assert said in lines(done, "no")


def test_each_setting_stands_with_its_origin(site: Path) -> None:
    (site.parent / "d.yaml").write_text("steps: 7\n")
    done = quick_doctor(site, DSPROF_CONFIG="d.yaml", DSPROF_EVERY="2")
    shown = [" ".join(line.split()) for line in lines(done, "ok")]
    assert "steps = 7 (d.yaml:1:8)" in shown
    assert "every = 2 (DSPROF_EVERY)" in shown
    assert "out = dsprof-out (default)" in shown
    assert "alerts = none (default)" in shown
    others = lines(quick_doctor(site), "ok")
    assert "steps = all (default)" in [" ".join(line.split()) for line in others]


@pytest.mark.parametrize(
    ("variables", "note"),
    [
        ({}, "DSPROF is not set"),
        ({"DSPROF": "0"}, "DSPROF=0: recording is switched off"),
    ],
)
def test_a_switch_that_is_off_is_no_obstacle(
    site: Path, variables: dict[str, str], note: str
) -> None:
    done = quick_doctor(site, **variables)
    assert done.returncode == 0
    assert any(line.startswith(note) for line in lines(done, "note"))


@pytest.mark.parametrize(
    ("variables", "obstacles"),
    [
        ({"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}, ["TORCH_DEVICE_BACKEND_AUTOLOAD=0 keeps torch"]),
        ({"DSPROF_OUT": "/dev/null/x"}, ["/dev/null/x: /dev/null is not a folder"]),
        (
            {"DSPROF_STEP": "3", "DSPROF_EVERY": "x"},
            ["environment: unknown variable 'DSPROF_STEP'", "DSPROF_EVERY: 'every' must be"],
        ),
    ],
)
def test_an_obstacle_in_the_environment(
    site: Path, variables: dict[str, str], obstacles: list[str]
) -> None:
    done = quick_doctor(site, **variables)
    assert (done.returncode, done.stderr) == (1, "")
    found = lines(done, "no")
    assert len(found) == len(obstacles)
    assert all(map(str.startswith, found, obstacles))
    assert done.stdout.endswith(f"see each 'no' above ({len(obstacles)}).\n")


def test_an_older_torch_names_the_other_ways(tmp_path: Path, site: Path) -> None:
    older = tmp_path / "older"
    install(older, "torch", "2.4.0")
    done = quick_doctor(older, site)
    assert done.returncode == 1
    assert lines(done, "no") == ["torch 2.4.0 loads no plugins: use dsprof run, or dsprof.enable()"]


def test_a_broken_msgspec_is_said_and_not_raised(site: Path) -> None:
    (site / "msgspec.py").write_text("raise ImportError('wrong ELF class')")
    done = doctor(site)
    assert (done.returncode, done.stderr) == (1, "")
    assert lines(done, "no") == ["msgspec cannot be imported: wrong ELF class; reinstall it"]


def test_a_setting_does_not_steer_the_terminal(site: Path) -> None:
    done = quick_doctor(site, DSPROF_OUT="\x1b[31m")
    assert "\x1b" not in done.stdout
    assert "out = \\x1b[31m (DSPROF_OUT)" in " ".join(done.stdout.split())


def test_what_is_not_installed_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from dsprof.__main__ import main

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("dsprof.cli.doctor.version_of", lambda name: None)
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: ())
    assert main(["doctor"]) == 1
    shown = capsys.readouterr().out
    assert "  no  torch is not installed in this Python\n" in shown
    assert "note  deepspeed is not installed" in shown
    assert "  no  torch does not find dsprof" in shown


def test_all_mistakes_of_a_file_are_told_at_once(site: Path) -> None:
    (site.parent / "d.yaml").write_text("evry: 2\nrules:\n  late-rnak: {}\n")
    done = quick_doctor(site, DSPROF_CONFIG="d.yaml")
    assert done.returncode == 1
    assert [line.partition(" - ")[0] for line in lines(done, "no")] == [
        "d.yaml:1:1: unknown key 'evry'",
        "d.yaml:3:3: unknown rule 'late-rnak'",
    ]


def test_a_folder_that_only_seems_to_be_writable_is_an_obstacle(site: Path) -> None:
    done = quick_doctor(site, DSPROF_OUT="/proc/traces")
    assert lines(done, "no") == ["/proc/traces cannot be written; set DSPROF_OUT to another folder"]


def test_a_python_without_the_gil_is_an_obstacle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "_is_gil_enabled", bool, raising=False)
    said = [check.text for check in itertools.islice(_checks({}), 2) if check.state == "no"]
    assert said == [NO_GIL]
