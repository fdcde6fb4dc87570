"""Runs that hang, and are ended in several ways: the report names the collective and the rank."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from dsprof.diagnosis.build import diagnose
from dsprof.diagnosis.model import Diagnosis
from dsprof.trace.run import find_run
from tests.dist.launch import PROGRAMS, environment
from tests.dist.programs.hangs import ABSENT, CASES

pytestmark = [pytest.mark.dist, pytest.mark.timeout(300)]

NEVER_CAME = f"Rank {ABSENT} never entered all_reduce 4 of group world"
HEADLINES: dict[str, str | tuple[str, ...]] = {
    "killed": NEVER_CAME,
    "skips_one": "Collective number 4 of world differs in operation: broadcast on ranks 0, 1; "
    "all_reduce on rank 2",
    "interrupted": NEVER_CAME,
    "interrupted_in_a_call": NEVER_CAME,
    "terminated": NEVER_CAME,
    "warned": NEVER_CAME,
    "times_out": NEVER_CAME,
    # gloo aborts the receiver: whether its last call was written is a matter of the moment.
    "other_size": (
        "Ranks 1, 2 stopped in or before all_reduce 4 of group world",
        "Collective number 4 of world differs in size",
    ),
    "other_order": "Ranks 0, 1 are deadlocked",
    "never_sends": "Rank 2 never entered the send that recv 1 of group world (16 B) needs",
    "raises": NEVER_CAME,
}
SHORT = ("killed", "skips_one", "interrupted")


def diagnosed(folder: Path, *names: str) -> dict[str, Diagnosis]:
    program = [sys.executable, PROGRAMS / "hangs.py", folder, *names]
    subprocess.run(program, env=environment({}), check=True, timeout=240)
    return {name: diagnose(find_run([folder / name])) for name in names}


def test_the_headline_names_who_did_not_come(tmp_path: Path) -> None:
    found = diagnosed(tmp_path, *SHORT)
    for name, diagnosis in found.items():
        assert diagnosis.verdict.startswith(HEADLINES[name]), name
        assert diagnosis.findings[0].ranks == (ABSENT,), name
    assert found["killed"].quality.unclean_ranks == [0, 1, 2]
    assert found["interrupted"].quality.unclean_ranks == []


@pytest.mark.long
@pytest.mark.parametrize("name", sorted(CASES.keys() - set(SHORT)))
def test_so_it_does_however_the_run_ends(tmp_path: Path, name: str) -> None:
    assert diagnosed(tmp_path, name)[name].verdict.startswith(HEADLINES[name])
