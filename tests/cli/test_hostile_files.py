"""Files made to fill the memory or to lead astray: one line each, in a gigabyte, and no more."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from dsprof.__main__ import main
from dsprof.diagnosis.document import to_json
from dsprof.environment import EnvSnapshot
from dsprof.trace.lines import LINES
from dsprof.trace.schema import EngineConfig
from tests.cli.command import ROOT, environment
from tests.factories import hostile
from tests.factories import trace as make
from tests.factories.diagnosis import diagnosis
from tests.factories.trace_files import encode, write_run

ONE_BY_ONE = """
import json, resource, sys
resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from dsprof.__main__ import main
for path in sys.argv[1:]:
    with redirect_stderr(StringIO()) as said, redirect_stdout(StringIO()):
        code = main(["report", path, "--format", "text"])
    print(json.dumps([path, code, said.getvalue()]))
"""

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="gives a file to another user")


def test_each_is_refused_in_a_gigabyte(tmp_path: Path) -> None:
    files = hostile.write_all(tmp_path / "files")
    done = subprocess.run(
        [sys.executable, "-c", ONE_BY_ONE, *map(str, files)],
        env={**environment(), "OPENBLAS_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=250,
        check=True,
    )
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(answers) == len(files)
    wrong = [one for one in answers if one[1] != 2 or one[2].count("\n") != 1]
    assert not wrong


def test_no_command_breaks_on_files_of_any_kind() -> None:
    """All that `make fuzz` asks, of small files and a few of the questions."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.hostile", "--scale", "0.002", "--every", "29"],
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert " 0 commands" not in done.stdout


def test_none_ends_the_report_of_a_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "files"
    write_run(folder)
    hostile.write_all(folder)
    assert main(["report", str(folder), "--format", "json"]) == 0
    quality = json.loads(capsys.readouterr().out)["quality"]
    assert any("a broken link" in one for one in quality["strangers"])
    assert any("deflate" in one for one in quality["strangers"])


def test_a_rank_that_turns_out_to_be_damaged_is_passed_over(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its header is right, and what follows expands without end."""
    _, second = write_run(tmp_path)
    data = second.read_bytes()
    second.unlink()
    packed = Path(f"{second}.gz")
    packed.write_bytes(gzip.compress(data + b"\n" * (80 << 20)))
    assert main(["report", str(tmp_path), "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["run"]["ranks"] == [0]
    assert found["quality"]["missing_ranks"] == [1]
    assert any(f"{packed}: expands" in one for one in found["quality"]["strangers"])
    assert main(["report", str(packed)]) == 2


def test_a_large_configuration_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_run(tmp_path / "run")
    path = tmp_path / "large.yaml"
    path.write_bytes(b"rules:\n" + b"  a: {b: 1}\n" * 100_000)
    assert main(["report", str(tmp_path / "run"), "--config", str(path)]) == 2
    assert "larger than 256 KiB" in capsys.readouterr().err


@pytest.mark.parametrize("path", ["/proc/self/maps", "/proc/kmsg", "/sys/kernel/mm/ksm/run"])
def test_files_of_the_kernel_are_refused(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    if not os.path.exists(path):
        pytest.skip(f"this kernel has no {path}")
    for arguments in (["report", path], ["lint", path]):
        assert main(arguments) == 2
        assert "a file of the kernel" in capsys.readouterr().err


def test_names_that_are_not_utf8_are_shown_in_every_format(tmp_path: Path) -> None:
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/run\xff\xc2\x9b"))
    write_run(folder)
    for kind in ("json", "text", "html"):
        assert main(["report", str(folder), "--format", kind, "-o", str(tmp_path / kind)]) == 0
    assert "run\\udcff" in json.loads((tmp_path / "json").read_text())["run"]["source"][0]


def test_json_does_not_steer_the_terminal(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    name = "run\x9b31m\u202e\u200b"
    write_run(tmp_path / name)
    assert main(["report", str(tmp_path / name), "--format", "json"]) == 0
    text = capfdbinary.readouterr().out.decode()
    assert all(char.isprintable() or char == "\n" for char in text)
    assert name in json.loads(text)["run"]["source"][0]


@pytest.mark.parametrize("to", ["csv", "chrome"])
def test_an_export_does_not_steer_the_terminal(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes], to: str
) -> None:
    lines = [
        LINES["header"](args=make.header(0, 1)),
        LINES["group"](args=make.group(1)),
        make.sync("all_reduce\x1b]0;a\x07\x9b31m\u202e", 10, 5, step=0),
        LINES["trailer"](args=make.Trailer("exit")),
    ]
    (tmp_path / "trace.rank00000.json").write_bytes(encode(lines))
    assert main(["export", str(tmp_path), "--to", to, "-o", "-"]) == 0
    text = capfdbinary.readouterr().out.decode()
    assert "all_reduce" in text
    assert all(char.isprintable() or char in "\r\n" for char in text)


@pytest.mark.parametrize(
    ("section", "value", "message"),
    [
        ("waits", {"ranks": [0], "steps": [0], "exposed_ns": [[1, 2]]}, "one cell for each rank"),
        ("waits", {"ranks": [0, 1], "steps": [0], "exposed_ns": [[1]]}, "one cell for each rank"),
        ("waits", {"ranks": [0], "steps": [0], "exposed_ns": [[10**400]]}, "beyond 64 bits"),
    ],
)
def test_a_saved_diagnosis_of_another_shape_is_refused(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    section: str,
    value: object,
    message: str,
) -> None:
    saved = tmp_path / "saved.json"
    saved.write_text(json.dumps({**json.loads(to_json(diagnosis())), section: value}))
    assert main(["report", str(saved), "--format", "text"]) == 2
    assert message in capsys.readouterr().err


def nested(depth: int) -> dict[str, object]:
    found: dict[str, object] = {}
    for _ in range(depth):
        found = {"a": found}
    return found


def test_a_configuration_nested_without_end_ends_no_report(tmp_path: Path) -> None:
    (trace, *_) = write_run(tmp_path / "run", 1)
    engine = LINES["engine"](name="engine", args=EngineConfig(engine=1, written=nested(900)))
    lines = trace.read_bytes().splitlines(keepends=True)
    trace.write_bytes(b"".join([*lines[:2], msgspec.json.encode(engine), b",\n", *lines[2:]]))
    saved = tmp_path / "saved.json"
    plain = json.loads(to_json(diagnosis()))
    plain["environment"]["written_config"] = nested(900)
    saved.write_text(json.dumps(plain))
    for path in (tmp_path / "run", saved):
        assert main(["report", str(path), "--format", "json", "-o", str(tmp_path / "out")]) == 0
        assert (tmp_path / "out").read_bytes().count(b'"a"') < 100


def test_a_diagnosis_that_an_earlier_dsprof_saved_is_shown_without_secrets(tmp_path: Path) -> None:
    saved, page = tmp_path / "saved.json", tmp_path / "page.html"
    plain = json.loads(to_json(diagnosis()))
    plain["environment"]["written_config"] = {"comet": {"api_key": "hunter2"}, "note": "hunter2"}
    plain["environment"]["variables"] = {"OMPI_ARGV": "train.py hunter2", "NCCL_DEBUG": "INFO"}
    saved.write_text(json.dumps(plain))
    for kind in ("html", "json"):
        assert main(["report", str(saved), "--format", kind, "-o", str(page)]) == 0
        assert b"hunter2" not in page.read_bytes()
        assert b"INFO" in page.read_bytes()


@as_root
def test_a_report_follows_no_link_of_another_user(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_run(tmp_path / "run")
    mine = tmp_path / "precious"
    mine.write_text("kept")
    link = tmp_path / "report.html"
    link.symlink_to(mine)
    hostile.owned_by_another(link)
    for kind in ("html", "json"):
        answer = main(["report", str(tmp_path / "run"), "--format", kind, "-o", str(link)])
        assert answer == 2
        assert "belongs to another user" in capsys.readouterr().err
    assert mine.read_text() == "kept"


@as_root
def test_a_folder_gives_no_trace_by_a_link_of_another_user(tmp_path: Path) -> None:
    write_run(tmp_path / "run")
    (other,) = write_run(tmp_path / "other")[:1]
    shared = tmp_path / "shared"
    shared.mkdir()
    link = shared / "trace.rank00000.json"
    link.symlink_to(other)
    assert main(["report", str(shared), "--format", "text"]) == 0
    hostile.owned_by_another(link)
    assert main(["report", str(shared), "--format", "text"]) == 2


@pytest.mark.parametrize("command", [["report", "x" * 5000], ["run", "--", ""]])
def test_names_that_no_file_can_have_are_refused(
    command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(command) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_name_too_long_for_a_report_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_run(tmp_path / "run")
    assert main(["report", str(tmp_path / "run"), "-o", "x" * 5000]) == 2
    assert "File name too long" in capsys.readouterr().err


def test_a_file_of_which_most_is_damaged_is_given_up(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is damaged is decoded piece by piece: 20 million pieces would take minutes."""
    path = tmp_path / "profile.json.gz"
    path.write_bytes(gzip.compress(hostile.PROFILE + b"{}," * 200_000 + b"{}]}"))
    assert main(["report", str(path)]) == 2
    said = capsys.readouterr().err
    assert f"{path}: " in said
    assert "are damaged, so the rest is not read" in said


def test_more_variables_than_a_process_has_are_excluded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (trace, *_) = write_run(tmp_path / "run", 1)
    many = EnvSnapshot(variables={f"NCCL_{i}": "1" for i in range(5000)})
    event = LINES["environment"](name="environment", args=many)
    lines = trace.read_bytes().splitlines(keepends=True)
    trace.write_bytes(b"".join([*lines[:2], msgspec.json.encode(event), b",\n", *lines[2:]]))
    assert main(["report", str(trace), "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert any("5,000 environment variables" in note for note in found["quality"]["notes"])
    assert found["environment"]["variables"] == {}
