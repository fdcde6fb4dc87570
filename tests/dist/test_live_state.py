"""A rank that dies within a collective is known to be in it, however it dies."""

from __future__ import annotations

from pathlib import Path

import pytest

from dsprof.analysis.aggregates.endings import Endings
from dsprof.analysis.summarise import summarise
from dsprof.trace.run import find_run
from tests.dist.launch import PROGRAMS, launch
from tests.dist.programs.dies import ENDS, ROUNDS

pytestmark = [pytest.mark.dist]


@pytest.mark.parametrize("end", ENDS)
def test_the_operation_that_a_rank_died_in_is_known(tmp_path: Path, end: str) -> None:
    launch(PROGRAMS / "dies.py", args=[end], env={"DSPROF": "1", "DSPROF_OUT": str(tmp_path)})
    run = find_run([tmp_path])
    ending = summarise(run, (Endings,))[Endings].ranks[1]
    assert ending.trailer is None
    (world,) = ending.groups.values()
    assert (world.completed, world.enqueued) == (ROUNDS, ROUNDS + 1)
    call = world.calls[ROUNDS + 1]
    assert (call.op, call.is_in_flight, call.nbytes, call.dtype) == (
        "broadcast",
        True,
        32,
        "float32",
    )
    assert "dies.py" in call.frame
