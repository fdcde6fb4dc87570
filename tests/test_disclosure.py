"""dsprof.disclosure: what is written of a description, with and without `anonymize`."""

from __future__ import annotations

import msgspec
import pytest

from dsprof.anonymize import Anonymizer
from dsprof.disclosure import Disclosure
from dsprof.trace.format import HookStatus, NoteArgs, Trailer
from tests.factories.trace import header

BESIDE_HOME = "cannot load /home/alice/.cache/kernels.so"
BROKEN = "of another encoding: \udce9, and half a pair: \ud83d"


@pytest.fixture
def anonymous(monkeypatch: pytest.MonkeyPatch) -> Disclosure:
    monkeypatch.setenv("HOME", "/home/alice")
    return Disclosure(Anonymizer("run", {"USER": "alice"}))


def described(text: str) -> list[object]:
    """All kinds of descriptions that hold words of an error or of a configuration."""
    return [
        Trailer(reason="exit", failed_hooks={"native": text}),
        [HookStatus("native", "torch", why=text), HookStatus("memory", "torch")],
        NoteArgs(text),
        header(config={"out": text}),
    ]


@pytest.mark.parametrize("number", range(4))
def test_words_of_an_error_lose_paths_and_users(anonymous: Disclosure, number: int) -> None:
    found = msgspec.json.encode(anonymous(described(BESIDE_HOME)[number])).decode()
    assert "kernels.so" in found
    assert "alice" not in found
    assert "alice" in msgspec.json.encode(described(BESIDE_HOME)[number]).decode()


@pytest.mark.parametrize("number", range(4))
def test_what_is_no_unicode_is_marked_and_costs_no_line(number: int) -> None:
    with pytest.raises(UnicodeEncodeError):
        msgspec.json.encode(described(BROKEN)[number])
    found = msgspec.json.encode(Disclosure(None)(described(BROKEN)[number])).decode()
    assert "of another encoding: \ufffd, and half a pair: \ufffd" in found
