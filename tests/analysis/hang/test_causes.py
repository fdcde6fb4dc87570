from __future__ import annotations

from pathlib import Path

import pytest

from dsprof.analysis.ending import Symptoms
from dsprof.analysis.hang.causes import in_own_code

C10D = "/v/site-packages/torch/distributed/distributed_c10d.py"


def test_a_rank_that_waits_for_a_lost_store_is_said_to():
    stack = (
        f"{C10D}:9 _new_process_group_helper",
        f"{C10D}:5 new_group",
        "/home/u/train.py:33 main",
    )
    found = in_own_code(Symptoms(stack=stack, store_call="new_group", lost_store="node0:29500"))

    assert found is not None
    kind, text = found
    assert kind == "store"
    assert "waits in new_group at" in text
    assert text.endswith("train.py:33 main, for the store at node0:29500, which does not answer")


def test_a_call_of_torch_that_is_not_recorded_has_the_name_that_was_called():
    wrapper = C10D.replace("distributed_c10d", "c10d_logger")
    stack = (
        f"{C10D}:9 _new_process_group_helper",
        f"{wrapper}:83 wrapper",
        f"{C10D}:5 new_group",
        "/home/u/train.py:33 main",
    )
    found = in_own_code(Symptoms(stack=stack))
    assert found == ("diverged", "is in new_group of torch.distributed at /home/u/train.py:33 main")


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("_get_default_store().wait(['key'])", "store"),
        ("self._store.get('key')", "store"),
        ("tcp_store.barrier()", "store"),
        ("restore.get('key')", None),
    ],
)
def test_a_wait_for_the_store_is_known_by_its_line(
    line: str, kind: str | None, tmp_path: Path
) -> None:
    source = tmp_path / "train.py"
    source.write_text(f"{line}\n")
    found = in_own_code(Symptoms(stack=(f"{source}:1 main",)))
    assert (found and found[0]) == kind


def test_a_frame_whose_line_is_no_number_of_a_line_says_nothing():
    assert in_own_code(Symptoms(stack=(f"/home/u/train.py:{'9' * 5000} main",))) is None
