"""What is written of a description, with and without `anonymize`."""

from __future__ import annotations

import msgspec
import pytest

from dsprof.environment import EnvSnapshot
from dsprof.files.redaction import REDACTED, redact_text
from dsprof.files.redaction.known_settings import written_variables
from dsprof.recording.recorder.pseudonyms import Anonymizer
from dsprof.recording.recorder.redacted_records import Redaction
from dsprof.trace.schema import EngineConfig, HookStatus, Note, Site, Trailer
from tests.factories.trace import header

BESIDE_HOME = "cannot load /home/alice/.cache/kernels.so"
BROKEN = "of another encoding: \udce9, and half a pair: \ud83d"


@pytest.fixture
def anonymous(monkeypatch: pytest.MonkeyPatch) -> Redaction:
    monkeypatch.setenv("HOME", "/home/alice")
    return Redaction(Anonymizer("run", {"USER": "alice"}))


def described(text: str) -> list[object]:
    """All kinds of descriptions that hold words of an error or of a configuration."""
    return [
        Trailer(reason="exit", failed_hooks={"native": text}),
        [HookStatus("native", "torch", why=text), HookStatus("memory", "torch")],
        Note(text),
        header(config={"out": text}),
    ]


@pytest.mark.parametrize("number", range(4))
def test_words_of_an_error_lose_paths_and_users(anonymous: Redaction, number: int) -> None:
    found = msgspec.json.encode(anonymous(described(BESIDE_HOME)[number])).decode()
    assert "kernels.so" in found
    assert "alice" not in found
    assert "alice" in msgspec.json.encode(described(BESIDE_HOME)[number]).decode()


@pytest.mark.parametrize("number", range(4))
def test_what_is_no_unicode_is_marked_and_costs_no_line(number: int) -> None:
    with pytest.raises(UnicodeEncodeError):
        msgspec.json.encode(described(BROKEN)[number])
    found = msgspec.json.encode(Redaction(None)(described(BROKEN)[number])).decode()
    assert "of another encoding: \ufffd, and half a pair: \ufffd" in found


def test_of_a_configuration_only_known_keys_keep_their_values() -> None:
    written = {
        "train_batch_size": "auto",
        "comet": {"enabled": True, "project": "llama 7b", "api_key": "hunter2"},
        "credentials": {"value": "hunter2", "pin": 4711, "list": ["hunter2"]},
        "my_token": 4711,
        "gradient_acumulation_steps": 8,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "betas": [0.9, 0.95], "hub": "x"}},
        "tensorboard": {"output_path": "/data/runs", "job_name": "hunter2@host:x"},
        "sk" + "-proj-a1b2c3d4e5f6g7h8": 1,
    }
    assert Redaction(None)(EngineConfig(1, written)).written == {
        "train_batch_size": "auto",
        "comet": {"enabled": True, "project": "llama 7b", "api_key": REDACTED},
        "credentials": {"value": REDACTED, "pin": REDACTED, "list": REDACTED},
        "my_token": REDACTED,
        "gradient_acumulation_steps": REDACTED,
        "optimizer": {
            "type": "AdamW",
            "params": {"lr": 1e-4, "betas": [0.9, 0.95], "hub": REDACTED},
        },
        "tensorboard": {"output_path": "/data/runs", "job_name": REDACTED},
        REDACTED: REDACTED,
    }


def test_spans_sites_and_machines_lose_credentials() -> None:
    secret = "gh" + "p_a1" + 17 * "b2"
    for one in (
        Site(1, f"/srv/{secret}/train.py", 3, "step"),
        EnvSnapshot(machine={"cmdline": f"root=/dev/sda token={secret}"}, libraries=[f"/{secret}"]),
        Note(f"cannot fetch https://{secret}@host/x"),
    ):
        assert secret not in msgspec.json.encode(Redaction(None)(one)).decode()
    assert Redaction(None)("load https://me:pw@host/x") == f"load https://{REDACTED}@host/x"


def test_a_list_whose_item_names_a_secret_is_no_known_value() -> None:
    variables = {"FI_PROVIDER": "efa;auth_key:hunter2", "OMPI_MCA_btl": "tcp,password,hunter2"}
    written = written_variables(variables | {"SLURM_JOB_NAME": "tokenizer-train"})
    assert written == {
        "FI_PROVIDER": REDACTED,
        "OMPI_MCA_btl": REDACTED,
        "SLURM_JOB_NAME": "tokenizer-train",
    }


def test_a_configuration_that_is_nested_without_end_is_cut() -> None:
    config: dict[str, object] = {}
    for _ in range(5000):
        config = {"a": config}
    lists: list[object] = []
    for _ in range(5000):
        lists = [lists]
    found = Redaction(None)(EngineConfig(1, config, {"zero_optimization": {"stage": lists}}))
    assert msgspec.json.encode(found).count(b"{") < 100
    assert found.effective == {"zero_optimization": {"stage": [REDACTED]}}


def test_settings_of_pinned_memory_are_no_credentials() -> None:
    assert redact_text("set pin_memory=True, pin=1234") == "set pin_memory=True, pin=<redacted>"
