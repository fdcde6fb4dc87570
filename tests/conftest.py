"""Fixtures for every test."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from dsprof.recording.recorder.recorder import Recorder
from tests.dist.warm import EXTENSIONS

ROOT = Path(__file__).parents[1]

# Where make has built what torch and DeepSpeed load; not where the user of this machine has it.
os.environ.setdefault("TORCH_EXTENSIONS_DIR", str(EXTENSIONS))
os.environ.setdefault("HYPOTHESIS_STORAGE_DIRECTORY", str(ROOT / "build" / "hypothesis"))

# A shell lets what it starts in the background ignore Ctrl-C; commands under test would inherit it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _no_dsprof_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the tests apart from whatever the shell that runs them has set."""
    for name in list(os.environ):
        if name.startswith(("DSPROF", "PYTHON_DSPROF")):
            monkeypatch.delenv(name)


@pytest.fixture
def recorder() -> Recorder:
    """Return one that records."""
    recorder = Recorder(lambda: True)
    assert recorder.arm()
    return recorder
