"""`dsprof run`: the environment of the command, and torch before 2.6."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.command import dsprof, environment, install

SHOW = "import json, os, sys; print(json.dumps([dict(os.environ), sys.argv[1:]]))"


def test_the_switch_the_options_and_their_mirrors_are_set(tmp_path: Path) -> None:
    options = ("--out", "a b", "--start-step", "3", "--anonymize", "--", sys.executable, "-c", SHOW)
    done = dsprof("run", *options, cwd=tmp_path)
    variables, _ = json.loads(done.stdout)
    ours = {
        "DSPROF": "1",
        "DSPROF_OUT": "a b",
        "DSPROF_START_STEP": "3",
        "DSPROF_ANONYMIZE": "true",
    }
    mirrors = {f"PYTHON_{name}": value for name, value in ours.items()}
    set_ones = {name: value for name, value in variables.items() if "DSPROF" in name}
    assert set_ones.pop("_DSPROF_COMMAND_PID").isdecimal()
    assert set_ones.pop("_DSPROF_OBSERVER").startswith("dsprof-")
    assert set_ones == ours | mirrors


@pytest.mark.parametrize("separator", [("--",), ()])
def test_the_arguments_of_the_command_are_its_own(
    tmp_path: Path, separator: tuple[str, ...]
) -> None:
    command = (sys.executable, "-c", SHOW, "--out", "x", "--", "-o", "")
    done = dsprof("run", *separator, *command, cwd=tmp_path)
    variables, arguments = json.loads(done.stdout)
    assert arguments == ["--out", "x", "--", "-o", ""]
    assert "DSPROF_OUT" not in variables


def test_its_exit_code_is_ours(tmp_path: Path) -> None:
    done = dsprof("run", "--", sys.executable, "-c", "raise SystemExit(7)", cwd=tmp_path)
    assert done.returncode == 7


def test_a_closed_stderr_is_none(tmp_path: Path) -> None:
    shell = 'exec "$@" 2>&-'
    run = (sys.executable, "-m", "dsprof", "run", "--", sys.executable, "-c", "raise SystemExit(7)")
    done = subprocess.run(("sh", "-c", shell, "sh", *run), cwd=tmp_path, env=environment())
    assert done.returncode == 7


def test_an_option_wins_over_the_environment_and_its_old_mirror(tmp_path: Path) -> None:
    env = environment(DSPROF_EVERY="2", PYTHON_DSPROF_OUT="old", PYTHON_DSPROF_STEPS="5")
    done = dsprof("run", "--out", "new", "--", sys.executable, "-c", SHOW, cwd=tmp_path, env=env)
    variables, _ = json.loads(done.stdout)
    for prefix in ("", "PYTHON_"):
        assert variables[f"{prefix}DSPROF_OUT"] == "new"
        assert variables[f"{prefix}DSPROF_EVERY"] == "2"
        assert variables[f"{prefix}DSPROF_STEPS"] == "5"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "no command to start; type it after --: dsprof run -- COMMAND..."),
        (("--",), "no command to start; type it after --: dsprof run -- COMMAND..."),
        (("--", "no-such-command"), "cannot start no-such-command: No such file or directory"),
        (("--", "."), "cannot start .: Permission denied"),
        (
            ("train.py",),
            "cannot start train.py: No such file or directory; type its launcher, too: "
            "dsprof run -- torchrun train.py",
        ),
        (
            ("--every", "0", "--", "true"),
            "option every: 'every' must be at least 1, got 0",
        ),
        (
            ("--config", "no.yaml", "--", "true"),
            "no.yaml: cannot be read: No such file or directory",
        ),
        (
            ("--ou", "x", "--", "true"),
            "unknown option '--ou' - did you mean '--out'? (see dsprof run --help)",
        ),
    ],
)
def test_what_cannot_be_started_is_one_line(
    tmp_path: Path, arguments: tuple[str, ...], message: str
) -> None:
    done = dsprof("run", *arguments, cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"dsprof: {message}\n")


RANK = (
    "import pathlib; pathlib.Path('dsprof-out').mkdir()\n"
    "pathlib.Path('dsprof-out/trace.rank00000.json').touch()"
)


ALONE = "dsprof: nothing was recorded: the program communicated with no other"
BESIDE = "dsprof: nothing was recorded in "


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("import torch", ALONE),
        (f"import subprocess, sys, torch\nsubprocess.run([sys.executable, '-c', {RANK!r}])", ""),
        ("import subprocess, sys\nsubprocess.run([sys.executable, '-c', 'import torch'])", BESIDE),
        (RANK, ""),
        ("import torch; raise KeyError", "Traceback"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", BESIDE),
    ],
    ids=["alone", "launcher", "child", "recorded", "failed", "killed"],
)
def test_a_command_that_records_nothing_ends_with_a_line(
    tmp_path: Path, code: str, said: str
) -> None:
    done = dsprof("run", "--", sys.executable, "-c", code, cwd=tmp_path)
    assert done.stderr[: len(said) or None] == said
    assert done.stderr.count("nothing was recorded") == (said in (ALONE, BESIDE))


OWN_GROUP = (
    "import torch, torch.distributed as dist\n"
    "store = dist.FileStore('store', 1)\n"
    "dist.ProcessGroupGloo(store, 0, 1).allreduce([torch.ones(1)]).wait()\n"
)


@pytest.mark.parametrize(
    ("code", "world"),
    [("import torch", "2"), (OWN_GROUP, "1")],
    ids=["rank of several", "own group"],
)
def test_a_rank_that_records_nothing_is_not_asked_to_start_several(
    tmp_path: Path, code: str, world: str
) -> None:
    """As one that makes process groups of its own, without init_process_group()."""
    ranks = {**environment(), "RANK": "0", "WORLD_SIZE": world}
    command = [sys.executable, "-m", "dsprof", "run", "--", sys.executable, "-c", code]
    done = subprocess.run(
        command, cwd=tmp_path, env=ranks, capture_output=True, text=True, timeout=60, check=False
    )
    assert "Recording begins with torch.distributed.init_process_group()" in done.stderr
    assert "Start several" not in done.stderr


IDENTITY = """\
import json, os, signal
try:
    child = os.wait()
except ChildProcessError:
    child = None
fds = sorted(os.listdir("/proc/self/fd"))
blocked = sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ()))
print(json.dumps([os.getpid(), os.getppid(), os.getpgrp(), os.getsid(0), child, fds, blocked]))
"""


def test_the_command_is_the_process_that_was_started(tmp_path: Path) -> None:
    """So its signals, terminal, process group, children and end are as without dsprof."""
    plain, ours = (
        subprocess.Popen(
            [*before, sys.executable, "-c", IDENTITY],
            cwd=tmp_path,
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        for before in ((), (sys.executable, "-m", "dsprof", "run", "--"))
    )
    found = [json.loads(process.communicate(timeout=60)[0]) for process in (plain, ours)]
    assert [one[0] for one in found] == [plain.pid, ours.pid]
    assert found[0][1:] == found[1][1:]


GROUP = """\
import os, signal, time
def count(number, frame):
    os.write(1, signal.Signals(number).name.encode() + b" ")
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
    signal.signal(number, count)
os.write(1, b"ready ")
os.read(0, 1)
"""


def test_a_signal_to_the_process_group_arrives_once(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "dsprof", "run", "--", sys.executable, "-c", GROUP]
    with subprocess.Popen(
        command,
        cwd=tmp_path,
        env=environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        said = process.stdout.read(6)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
            os.killpg(process.pid, number)
            said += process.stdout.read(len(number.name) + 1)
        rest, errors = process.communicate(b"x", timeout=60)
    assert (said + rest).split() == [b"ready", b"SIGINT", b"SIGTERM", b"SIGUSR1"]
    assert errors.startswith(BESIDE.encode())  # the observer is no part of that group


ADOPTING = """\
import ctypes, os, sys
ctypes.CDLL(None).prctl(36, 1)  # PR_SET_CHILD_SUBREAPER: orphans become children of this process
os.execv(sys.executable, [sys.executable, "-m", "dsprof", "run", "--", *sys.argv[1:]])
"""


def test_a_process_that_inherits_orphans_gets_no_child(tmp_path: Path) -> None:
    run = [sys.executable, "-c", ADOPTING, sys.executable, "-c", IDENTITY]
    done = subprocess.run(
        run, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=60
    )
    assert json.loads(done.stdout)[4] is None
    assert done.stderr == ""


def test_before_torch_2_6_the_command_starts_us_from_pythonpath(tmp_path: Path) -> None:
    install(tmp_path, "torch", "2.4.0+cpu")
    (tmp_path / "torch.py").write_text("print('torch')")
    (tmp_path / "sitecustomize.py").write_text(
        "import dsprof_autostart\n"
        "print('sitecustomize')\n"
        "dsprof_autostart.autostart = lambda: print('armed')\n"
    )
    code = "print('start'); import torch; print('end')"
    done = dsprof("run", "--", sys.executable, "-c", code, cwd=tmp_path, env=environment(tmp_path))
    assert done.stdout.split() == ["sitecustomize"] * 2 + ["start", "torch", "armed", "end"]
    assert done.stderr.startswith("dsprof: torch 2.4.0+cpu loads no plugins")
    assert done.stderr.count("\n") == 2  # and that nothing was recorded


def test_a_python_without_dsprof_still_runs_the_command(tmp_path: Path) -> None:
    install(tmp_path, "torch", "2.5.1")
    bare = {"PYTHONPATH": str(Path(__file__).parents[2] / "dsprof/recording/startup"), "PATH": ""}
    code = f"import os; os.execve({sys.executable!r}, ['python', '-c', 'print(1)'], {bare!r})"
    done = dsprof("run", "--", sys.executable, "-c", code, cwd=tmp_path, env=environment(tmp_path))
    assert done.returncode == 0
    assert done.stdout == "1\n"


def test_from_torch_2_6_on_pythonpath_is_left_alone(tmp_path: Path) -> None:
    install(tmp_path, "torch", "2.6.0")
    env = environment(tmp_path)
    done = dsprof("run", "--", sys.executable, "-c", SHOW, cwd=tmp_path, env=env)
    variables, _ = json.loads(done.stdout)
    assert variables["PYTHONPATH"] == env["PYTHONPATH"]
    assert done.stderr.startswith(BESIDE)
    assert os.pathsep in variables["PYTHONPATH"]


def test_a_wrong_threshold_is_told_before_the_command_starts(tmp_path: Path) -> None:
    (tmp_path / "d.yaml").write_text("rules:\n  late-rank: {chanse: 0.1}\n")
    done = dsprof("run", "--config", "d.yaml", "--", "echo", "started", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("dsprof: d.yaml:2:15: unknown threshold of late-rank 'chanse'")
