"""`import torch` must work whatever is wrong with dsprof, and record nothing unless asked to."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ON = {"DSPROF": "1"}


def run(code: str, env: dict[str, str], path: Path | None = None) -> tuple[str, str]:
    """Run `code` in a fresh interpreter, with the modules in `path` before all others."""
    changes = {**env, **({"PYTHONPATH": str(path)} if path else {})}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **changes},
        cwd=path,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip(), done.stderr.strip()


SESSION_IS_ON = (
    "import torch, sys; s = sys.modules.get('dsprof.recording.session');"
    " print(bool(s and s.current()))"
)


@pytest.mark.parametrize(
    ("env", "on"),
    [
        ({}, "False"),
        ({"DSPROF": ""}, "False"),
        ({"DSPROF": "0"}, "False"),
        ({"DSPROF": "1"}, "True"),
        ({"PYTHON_DSPROF": "1"}, "True"),
        ({"DSPROF": "0", "PYTHON_DSPROF": "1"}, "False"),
        ({"DSPROF": "1", "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}, "False"),
    ],
)
def test_the_variable_decides(env: dict[str, str], on: str) -> None:
    assert run(SESSION_IS_ON, env) == (on, "")


@pytest.mark.parametrize("module", ["msgspec", "numpy_is_fine_but_not_ours"])
def test_a_broken_dependency_is_said_and_torch_works(tmp_path: Path, module: str) -> None:
    (tmp_path / f"{module}.py").write_text("raise RuntimeError('broken on purpose')\n")
    out, err = run("import torch; print(torch.ones(2).sum().item())", ON, tmp_path)
    assert out == "2.0"
    assert err.count("\n") == 0
    assert ("broken on purpose" in err) == (module == "msgspec")


@pytest.mark.parametrize("file", ["__init__.py", "recording/session.py"])
def test_a_broken_dsprof_is_no_reason_to_fail(tmp_path: Path, file: str) -> None:
    package = tmp_path / "dsprof"
    (package / "recording").mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / file).write_text("syntax error here")
    assert run("import torch; print(1)", {}, tmp_path) == ("1", "")
    out, err = run("import torch; print(1)", ON, tmp_path)
    assert out == "1"
    assert err.startswith("dsprof: not recording: ")


def test_a_users_own_file_named_dsprof_is_not_run_with_torch(tmp_path: Path) -> None:
    (tmp_path / "dsprof.py").write_text("print('of the user')\n")
    assert run("import torch; print(1)", {}, tmp_path) == ("1", "")


def test_a_wrong_setting_is_said_in_one_line(tmp_path: Path) -> None:
    out, err = run("import torch; print(1)", {**ON, "DSPROF_OUTT": "x"})
    assert out == "1"
    assert "did you mean" in err
    assert "Traceback" not in err


def test_variables_are_mirrored_for_remote_nodes() -> None:
    code = "import torch, os; print(os.environ.get('PYTHON_DSPROF_OUT'))"
    assert run(code, {**ON, "DSPROF_OUT": "elsewhere"})[0] == "elsewhere"
    assert run(code, {"DSPROF_OUT": "elsewhere"})[0] == "None"


def test_nothing_is_recorded_without_a_collective(tmp_path: Path) -> None:
    out, err = run("import torch; torch.ones(1)", {**ON, "DSPROF_OUT": str(tmp_path / "out")})
    assert (out, err) == ("", "")
    assert not (tmp_path / "out").exists()


INTERRUPTED = """
import torch, torch.distributed as dist
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
try:
    dist.all_reduce(torch.ones(1))
    raise KeyboardInterrupt
finally:
    dist.destroy_process_group()  # gloo's threads may abort a process that leaves them running
"""


@pytest.mark.parametrize("env", [{}, ON])
def test_ctrl_c_ends_a_recorded_process_as_any_other(env: dict[str, str], tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED],
        env={**os.environ, **env, "GLOO_SOCKET_IFNAME": "lo"},
        cwd=tmp_path,
        capture_output=True,
    )
    assert done.returncode == -signal.SIGINT
    assert bool(list(tmp_path.glob("dsprof-out/*"))) == bool(env)


def test_records_of_a_kind_first_written_at_exit_keep_the_exit_code_of_ctrl_c() -> None:
    code = (
        "import atexit; from dsprof.trace.schema import Collective; "
        "from dsprof.trace.writing.file_records import in_file; "
        "atexit.register(in_file, Collective); raise KeyboardInterrupt"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True)
    assert done.returncode == -signal.SIGINT


ENABLED = "import dsprof, torch; dsprof.enable()"
SPAWNING = f"""\
import multiprocessing
{ENABLED}
if __name__ == "__main__":
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0,
                                         world_size=1)
    child = multiprocessing.get_context("spawn").Process(target=print)
    child.start()
    child.join()
    torch.distributed.all_reduce(torch.ones(1))
    torch.distributed.destroy_process_group()
"""


STARTING = """\
import subprocess, sys, torch
if len(sys.argv) == 1:
    subprocess.run([sys.executable, __file__, "child"], check=True)
    subprocess.run([sys.executable, "-c", "import torch"], check=True)
"""


@pytest.mark.parametrize(
    ("code", "env", "lines"),
    [
        (ENABLED, {}, 1),
        (ENABLED, {"RANK": "1"}, 0),
        (f"{ENABLED}; raise SystemExit(0)", {}, 1),
        ("import torch", ON, 1),
        ("import torch", {**ON, "RANK": "0", "WORLD_SIZE": "1"}, 1),
        ("import torch", {**ON, "RANK": "1"}, 0),
        (STARTING, ON, 1),
        ("import os, torch; os.fork() and os.wait()", ON, 1),
        ("import sys; sys.argv[0] = __file__ = 'torchrun'; import torch", ON, 0),
        (SPAWNING, {}, 0),
    ],
    ids=[
        *("alone", "of several", "by exit", "by the variable", "rank", "rank of several"),
        *("starts others", "forks", "launcher", "spawned child"),
    ],
)
def test_a_program_that_communicates_with_nobody_is_told(
    tmp_path: Path, code: str, env: dict[str, str], lines: int
) -> None:
    """Launchers that a variable reaches, and processes that the program starts, are not."""
    program = tmp_path / "program.py"
    program.write_text(code)
    done = subprocess.run(
        [sys.executable, program], env={**os.environ, **env}, cwd=tmp_path, capture_output=True,
        text=True, check=True,
    )  # fmt: skip
    assert done.stderr.count("nothing was recorded: the program communicated with no") == lines
    assert done.stderr.count("RPC is not recorded") == lines
