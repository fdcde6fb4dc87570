"""A recorded run and its reports, with a corpus of credentials and names planted all over it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from tests.factories.secrets import Planted, encodings, names, passwords, texts

ROOT = Path(__file__).resolve().parents[1]

RUN = """
import json, sys
from pathlib import Path
import torch, torch.distributed as dist
import dsprof, dsprof.recording.session
from dsprof.trace.schema import EngineConfig, Note

planted = json.loads(Path(sys.argv[1]).read_text())
dsprof.enable(out=sys.argv[2], anonymize=sys.argv[3] == "names", interception="process_group")
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
recorder = dsprof.recording.session.current().recorder
dist.all_reduce(torch.ones(1))
recorder.outbox.define(EngineConfig(1, planted["config"], effective=planted["config"]))
for number, text in enumerate(planted["texts"]):
    site = f"/srv/{text}/train.py" if "/" not in text else text
    exec(compile("dist.all_reduce(torch.ones(1))", site.replace("\\0", ""), "exec"))
    recorder.outbox.define(Note(f"failed: {text}"))
    recorder.fail(f"hook{number}", RuntimeError(f"cannot open {text}: no such file"))
    with dsprof.annotate(f"load {text}"):
        pass
dist.destroy_process_group()
dsprof.disable()
"""

VARIABLES = (
    *("OMPI_ARGV", "SLURM_JOB_COMMENT", "NCCL_NET_PLUGIN", "NCCL_TUNER_PLUGIN", "CUDA_NOTE"),
    *("OMPI_MCA_orte_precondition_transports", "DS_SOMETHING", "TORCH_EXTRA", "SLURM_JOB_NAME"),
)


def configured(planted: Sequence[Planted]) -> dict[str, object]:
    """Return a DeepSpeed configuration that holds each as a value, and each token as a key."""
    keys = ("password", "my_token", "note", "launch_command", "registry_url", "dsn", "backup_2")
    config: dict[str, object] = {
        "train_batch_size": 8,
        "comet": {"api_key": planted[0].text, "experiment_key": planted[1].text},
        "credentials": {"value": planted[2].text, "list": [planted[3].text]},
        "optimizer": {"type": "Adam", "params": {"lr": 0.1, "hub": planted[4].text}},
        "tensorboard": {"enabled": True, "output_path": planted[5].text},
    }
    for number, one in enumerate(planted):
        config[f"{keys[number % len(keys)]}_{number}"] = one.text
        config[one.text] = number
    return config


def recorded(folder: Path, planted: Sequence[Planted], mode: str) -> bytes:
    """Record a run with all of them; return every byte of its trace and of its reports."""
    values = [one.text for one in planted]
    (folder / "planted.json").write_bytes(
        msgspec.json.encode({"texts": values, "config": configured(planted)})
    )
    (folder / "run.py").write_text(RUN)
    out = folder / (values[0] if mode == "secrets" else "alicesmith-run")
    variables = dict(zip(VARIABLES, values, strict=False))
    variables |= {f"NCCL_X{number}": text for number, text in enumerate(values)}
    environment = os.environ | variables | {"NCCL_CONF_FILE": str(folder / "nccl.conf")}
    environment |= {"PYTHONPATH": str(ROOT), "USER": "alicesmith", "HOSTNAME": "secrethost17"}
    conf = "\n".join(f"{name}={text}" for name, text in variables.items() if "\n" not in text)
    (folder / "nccl.conf").write_text(conf)
    arguments = [str(folder / name) for name in ("run.py", "planted.json")]
    subprocess.run([sys.executable, *arguments, str(out), mode], env=environment, check=True)
    return b"".join(written(out, folder, environment))


def written(out: Path, folder: Path, environment: dict[str, str]) -> Iterator[bytes]:
    yield from (trace.read_bytes() for trace in sorted(out.glob("*.json")))
    for kind in ("html", "json", "text"):
        command = [sys.executable, "-m", "dsprof", "report", str(out), "--format", kind]
        report = folder / f"report.{kind}"
        subprocess.run([*command, "-o", str(report)], env=environment, check=True, cwd=folder)
        yield report.read_bytes()


def test_no_credential_is_in_any_byte_of_a_run(tmp_path: Path) -> None:
    planted = [one for seed in range(5) for one in texts(seed)]
    found = recorded(tmp_path, planted, "secrets")
    leaked = {one.kind for one in planted if any(code in found for code in encodings(one.secret))}
    assert len(planted) > 250
    assert leaked == set()
    assert b'"train_batch_size":8' in found
    assert found.count(b"<redacted>") > len(planted)


def test_no_name_is_in_any_byte_of_an_anonymous_run(tmp_path: Path) -> None:
    planted = [*names(), *passwords()]
    found = recorded(tmp_path, planted, "names")
    leaked = {one.kind for one in planted if any(code in found for code in encodings(one.secret))}
    assert leaked == set()
