"""Our page among those of torch's debug server, which listens in a network of its own here."""

import re
from pathlib import Path

import pytest

from tests.dist.launch import PROGRAMS, launch, succeeds

pytest.importorskip("tabulate", reason="torch's debug server needs it")
pytest.importorskip("torch.distributed.debug._debug_handlers", reason="torch has it from 2.13 on")

ALONE = ("unshare", "--map-root-user", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh")
pytestmark = [
    pytest.mark.dist,
    pytest.mark.skipif(
        not succeeds(*ALONE, "true"), reason="unshare gives no network of its own here"
    ),
]


def test_torch_shows_our_page_until_recording_ends(tmp_path: Path) -> None:
    program = PROGRAMS / "debugged.py"
    output = launch(program, args=[tmp_path], behind=ALONE).check().output
    pages = dict(re.findall(r"(RECORDING|DISABLED) (.*?) END", output, re.DOTALL))
    for rank, part in enumerate(pages["RECORDING"].split("<h2>")[1:]):
        assert f"Rank {rank}" in part
        assert "in step 3" in part
    assert re.search(r"barrier \d+ of .*in flight for .*debugged\.py:\d+", pages["RECORDING"])
    assert pages["DISABLED"].count("not recording") == 2
