"""Ranks compare what is redacted, and nothing of it is written."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from tests.dist.launch import PROGRAMS, environment, launch
from tests.factories.secrets import encodings

pytestmark = pytest.mark.dist

SHARED = "https://me:Zq7hunter2abc@mirror.example/tuner.so"
ON_RANK_0 = "https://me:Zq8hunter3abc@mirror.example/net.so"
ON_RANK_1 = "https://me:Zq9hunter4abc@mirror.example/net.so"
SECRETS = ("Zq7hunter2abc", "Zq8hunter3abc", "Zq9hunter4abc")


def test_ranks_whose_secrets_differ_are_told_and_no_byte_shows_secret_or_key(
    tmp_path: Path,
) -> None:
    out, key_file = tmp_path / "out", tmp_path / "key"
    variables = {"NCCL_NET_PLUGIN": ON_RANK_0, "NCCL_TUNER_PLUGIN": SHARED}
    done = launch(
        PROGRAMS / "redacted.py", args=[out, key_file, ON_RANK_1], env=variables, imported="torch"
    ).check()
    written = {kind: _report(out, tmp_path / kind) for kind in ("html", "json", "text")}
    traces = [path.read_bytes() for path in out.iterdir()]
    key = bytes.fromhex(key_file.read_text())
    hidden = [*SECRETS, key.hex(), key.decode("latin-1")]
    for data in (*traces, *written.values(), done.output.encode()):
        assert not [text for text in hidden for code in encodings(text) if code in data]
    assert len(key) == 32
    assert len(traces) == 2

    found = msgspec.json.decode(written["json"])
    values = {one["name"]: one["values"] for one in found["environment"]["differences"]}
    apart = {"<redacted> (1)": [0], "<redacted> (2)": [1]}
    assert values["NCCL_NET_PLUGIN"] == apart
    assert values["train_batch_size"] == {f'"{a[:10]}"{a[10:]}': b for a, b in apart.items()}
    assert "NCCL_TUNER_PLUGIN" not in values
    assert found["environment"]["variables"]["NCCL_TUNER_PLUGIN"] == "<redacted>"
    said = [f["summary"] for f in found["findings"] if f["rule"] == "variable-differs-across-ranks"]
    assert any("NCCL_NET_PLUGIN" in text and "values redacted" in text for text in said), said
    assert not any("Unknown" in text for text in said), said


def _report(out: Path, path: Path) -> bytes:
    command = [sys.executable, "-m", "dsprof", "report", out, "--format", path.name, "-o", path]
    subprocess.run(command, env=environment({}), check=True, cwd=path.parent)
    return path.read_bytes()
