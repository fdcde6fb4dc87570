"""Every block of code in the README and the docs is run, or checked as far as one machine can.

A block without a language is for a shell. Its programs are not started: each is recorded with its
arguments, as bash would start it. Commands of dsprof are then run, in a folder that has the files
of which the docs speak; those of launchers are parsed by the launcher's own parser.
"""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
import yaml

import dsprof
from dsprof.__main__ import _parser, main
from dsprof.cli.loading import threshold_schema
from dsprof.config import load_config, load_thresholds
from dsprof.config.alerts import load_alerts
from dsprof.diagnosis.budget.limits import load_budget
from dsprof.files.remote import is_address
from dsprof.recording import session
from tests.docs.desk import ROOT, set_up

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]

NOT_RUN = {
    "accelerate": "needs Accelerate; make test-trainers runs it",
    "all_reduce_perf": "needs nccl-tests",
    "aws": "needs a bucket",
    "cat": "reads files of a node",
    "dask": "starts servers; test_examples.py runs it",
    "dmesg": "reads the kernel's log",
    "docker": "needs a daemon",
    "ethtool": "asks a network adapter",
    "fi_info": "needs libfabric",
    "grep": "searches the reader's program",
    "ibstat": "asks an InfiniBand adapter",
    "ip": "asks this machine's interfaces",
    "jq": "reads what a command before it wrote",
    "kubectl": "needs a cluster",
    "head": "reads what another program prints",
    "ldconfig": "lists libraries of a node",
    "nsys": "needs Nsight Systems",
    "numactl": "starts the reader's program",
    "nvidia-smi": "needs a GPU",
    "py-spy": "needs a running process of the reader",
    "scontrol": "needs Slurm",
    "srun": "needs Slurm",
    "ssh": "needs another machine",
    "sysctl": "changes a node",
}
"""Programs that this machine cannot run, with the reason; bash has parsed their lines."""

PARSED = {
    "--engine": "needs a Dask cluster",
    "--hosts": "names nodes of the reader",
    "capture": "asks a running job",
    "bench": "measures for minutes",
    "build": "compiles for half a minute",
    "run": "starts the reader's program",
    "metrics": "runs until it is interrupted",
    "serve": "runs until it is interrupted",
    "watch": "needs a terminal; tests/live/test_watch.py runs it",
    "--live": "needs a running training",
    "--open": "starts a browser",
    "markdown": "needs the example's plugin; tests/plugins runs it",
    "parquet": "needs pyarrow; tests/cli/test_export.py runs it",
    "slow-first-step": "needs the example's plugin; tests/plugins runs it",
}
"""What keeps a command of dsprof from being run, with the reason: its arguments are checked."""

# One write a call: the programs of a pipe run at the same time.
_RECORD = r"""
command_not_found_handle() { local IFS=$'\x1f'; printf '%s\x1e' "$*" >> "$CALLS"; }
"""


class Block(NamedTuple):
    """A fenced block, and where it is."""

    page: Path
    line: int
    language: str
    text: str


def blocks() -> Iterator[Block]:
    for page in PAGES:
        text = page.read_text()
        for found in re.finditer(r"^( *)```(\w*)\n(.*?)^\1```$", text, re.M | re.S):
            body = re.sub(rf"^{found[1]}", "", found[3], flags=re.M)
            if include := re.fullmatch(r"--8<--\n(.+)\n--8<--\n", body):
                body = (ROOT / include[1]).read_text()
            yield Block(page, text.count("\n", 0, found.start()) + 1, found[2], body)


def of(*languages: str) -> list[Any]:
    return [
        pytest.param(one, id=f"{one.page.relative_to(ROOT)}:{one.line}")
        for one in blocks()
        if one.language in languages
    ]


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = set_up(tmp_path_factory.mktemp("desk"))
    for name in ("before", "after"):
        saved = str(folder / f"{name}.json")
        assert main(["report", str(folder / name), "--format", "json", "-o", saved, "-q"]) == 0
    return folder


@pytest.fixture
def at_desk(desk: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(desk)
    monkeypatch.setenv("HOME", str(desk))
    return desk


# -- shell ------------------------------------------------------------------------------------


def calls(script: str, folder: Path) -> list[list[str]]:
    """Return what a script starts, without starting it."""
    log = folder / ".calls"
    log.unlink(missing_ok=True)
    home = {"PATH": "/nowhere", "HOME": str(folder), "CALLS": str(log), "SLURM_JOB_NODELIST": "n1"}
    home["SLURM_SUBMIT_DIR"] = str(folder)
    names = ("SLURM_JOB_ID", "SLURM_JOB_NUM_NODES", "SLURM_GPUS_ON_NODE", "SLURM_CPUS_PER_TASK")
    done = subprocess.run(
        ["/bin/bash", "-euc", _RECORD + script],
        cwd=folder,
        env=home | dict.fromkeys(names, "2"),
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, ""), script
    whole = log.read_text().split("\x1e")[:-1] if log.exists() else []
    return [call.split("\x1f") for call in whole]


@pytest.mark.parametrize("block", of("", "bash"))
def test_a_command_line_works(block: Block, at_desk: Path) -> None:
    for program, *arguments in calls(block.text, at_desk):
        check(program, arguments)
    load_config(dict(re.findall(r"\b(DSPROF\w*)=(\S+)", _without_files(block.text))), {})


def _without_files(text: str) -> str:
    """Leave out what the shell would have to fill in."""
    return re.sub(r"\bDSPROF_\w+=\S*[$\"]\S*", "", text)


def check(program: str, arguments: list[str]) -> None:
    """Check one call: run it, or have its own parser read it."""
    assert program in CHECKS or program in NOT_RUN, f"{program}: add a check, or a reason"
    CHECKS.get(program, _check_inner)(arguments)


def _check_inner(arguments: list[str]) -> None:
    """Check the program that another one starts."""
    inner = next((at for at, word in enumerate(arguments) if word in CHECKS), None)
    if inner is not None:
        check(arguments[inner], arguments[inner + 1 :])


def check_dsprof(arguments: list[str]) -> None:
    parsed = _parser().parse_args(arguments)
    if PARSED.keys() & {*arguments} or any(map(is_address, arguments)):
        _check_inner([word for word in getattr(parsed, "command", []) if word != "--"])
        return
    errors = StringIO()
    with redirect_stderr(errors):
        assert main(arguments) in (0, 1), errors.getvalue()


def check_torchrun(arguments: list[str]) -> None:
    from torch.distributed.run import get_args_parser

    found = get_args_parser().parse_args(arguments)
    if found.no_python:
        check(found.training_script, found.training_script_args)
    elif found.module:
        assert importlib.util.find_spec(found.training_script)
        if found.training_script == "dsprof":
            check_dsprof(found.training_script_args)
    else:
        assert found.training_script == "..." or Path(found.training_script).exists()


def check_deepspeed(arguments: list[str]) -> None:
    pytest.importorskip("deepspeed")
    from deepspeed.launcher.runner import parse_args

    script = parse_args(arguments).user_script
    assert script == "..." or Path(script).exists()


def check_make(arguments: list[str]) -> None:
    for target in (word for word in arguments if "=" not in word):
        assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.M), target


def check_pip(arguments: list[str]) -> None:
    from packaging.requirements import Requirement

    for word in (word for word in arguments[1:] if not word.startswith("-")):
        assert (ROOT / word).exists() or Requirement(re.sub(r"^\.(?=\[)", "dsprof", word)), word


def check_python(arguments: list[str]) -> None:
    match arguments:
        case ["-c", code]:
            compile(code, "-c", "exec")
        case ["-m", "torch.distributed.run", *rest]:
            check_torchrun(rest)
        case ["-m", module, *_]:
            assert importlib.util.find_spec(module)
        case [script, *_]:
            assert Path(script).exists()


CHECKS: dict[str, Callable[[list[str]], None]] = {
    "deepspeed": check_deepspeed,
    "dsprof": check_dsprof,
    "make": check_make,
    "pip": check_pip,
    "pytest": lambda arguments: None,
    "python": check_python,
    "python3": check_python,
    "torchrun": check_torchrun,
}


# -- Python and data --------------------------------------------------------------------------

UNRUNNABLE = {
    "torch.cuda": "needs a GPU",
    "import ray": "needs Ray",
    "dask_jobqueue": "needs Slurm",
    "dask_kubernetes": "needs a cluster",
    "start_debug_server": "listens on all interfaces",
    "DataLoader(": "a part of the reader's program",
    "model": "a part of the reader's program",
}


@pytest.mark.parametrize("block", of("python"))
def test_python_works(block: Block, at_desk: Path) -> None:
    code = compile(block.text, f"{block.page.name}:{block.line}", "exec")
    if any(word in block.text for word in UNRUNNABLE) or "rules" in block.page.parts:
        return
    names = {"dsprof": dsprof, "train": lambda: None, "loader": iter(range(9))}
    names |= {"step": 10, "wandb": SimpleNamespace(log=lambda figures, step: None)}
    try:
        exec(code, names)
    finally:
        session.stop()


def test_a_snapshot_is_written_when_memory_runs_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(torch.cuda.memory, "_record_memory_history", lambda **_: None)
    monkeypatch.setattr(torch.cuda.memory, "_dump_snapshot", lambda name: Path(name).touch())

    def train() -> None:
        raise torch.OutOfMemoryError

    [block] = [
        one for one in blocks() if one.page.stem == "out-of-memory" and "train()" in one.text
    ]
    with pytest.raises(torch.OutOfMemoryError):
        exec(block.text, {"torch": torch, "train": train, "dist": SimpleNamespace(get_rank=int)})
    assert [path.name for path in tmp_path.iterdir()] == ["memory.rank0.pickle"]


@pytest.mark.parametrize("block", of("yaml"))
def test_yaml_is_what_it_is_for(block: Block, tmp_path: Path) -> None:
    path = tmp_path / "file.yaml"
    path.write_text(block.text)
    documents = list(yaml.safe_load_all(block.text))
    if "kind" in documents[0]:
        kubernetes = pytest.importorskip("kubernetes_validate")
        for one in documents:
            kubernetes.validate(one, kubernetes.latest_version(), strict=True)
    elif "on_finding" in documents[0]:
        load_alerts(path)
    elif "rules" in documents[0] or "out" in documents[0]:
        load_thresholds(path, threshold_schema())
    else:
        load_budget(path, list(threshold_schema()))


@pytest.mark.parametrize("block", of("json"))
def test_json_can_be_read(block: Block) -> None:
    json.loads(block.text)


def test_every_block_is_of_a_kind_that_is_checked() -> None:
    assert {one.language for one in blocks()} <= {
        "",
        "bash",
        "python",
        "yaml",
        "json",
        "toml",
        "text",
    }
    commands = re.compile(r"^(?:[A-Z_]+=\S+ )*(?:dsprof|torchrun|deepspeed|make|pip) ", re.M)
    assert [one for one in blocks() if one.language == "text" and commands.search(one.text)] == []
