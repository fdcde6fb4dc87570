"""What the tables say of DeepSpeed's newest release, against that release itself."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from dsprof.rules.knowledge.deepspeed.keys import (
    NEWEST,
    fate_of_unknown,
    keys,
    known_keys,
    retired,
    section_of,
)
from dsprof.rules.knowledge.releases import release

PROGRAM = Path(__file__).parent / "programs" / "deepspeed_keys.py"
READ_ELSEWHERE = {"": {"allgather_size", "data_parallel_size", "sequence_parallel_size"}}
"""Keys that deepspeed.initialize reads, and not the configuration class."""


@pytest.fixture(scope="module")
def installed() -> dict[str, Any]:
    if find_spec("deepspeed") is None or (release(version("deepspeed")) or ()) < NEWEST:
        pytest.skip("no DeepSpeed as new as the tables")
    done = subprocess.run([sys.executable, PROGRAM], capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_the_keys_are_those_that_deepspeed_asks_for(installed):
    refused = {path for path, key in retired().items() if key.fate == "refused"}
    for section, asked in installed["keys"].items():
        known = set(known_keys(section, NEWEST)) - READ_ELSEWHERE.get(section, set())
        of_section = {path.rpartition(".")[2] for path in refused if section_of(path) == section}
        assert known == set(asked) - of_section, section


def test_switches_and_numbers_are_those_of_deepspeed(installed):
    for section, kinds in installed["kinds"].items():
        known = {
            path.rpartition(".")[2]: key.kind
            for path, key in keys().items()
            if section_of(path) == section and key.kind
        }
        assert known == kinds, section


def test_the_refused_keys_are_those_that_deepspeed_refuses(installed):
    refused = {path for path, key in retired().items() if key.fate == "refused" and key.since}
    assert refused == set(installed["removed"])


def test_strict_sections_are_those_of_deepspeed(installed):
    for section in installed["keys"]:
        fate = fate_of_unknown(section, NEWEST)
        strict = section in installed["strict"]
        assert fate == "refused" if strict else fate != "refused", section


def test_no_section_is_listed_without_its_keys():
    sections = {section_of(path) for path in keys()}
    assert {name for name in sections if fate_of_unknown(name, NEWEST) is None} == {
        "autotuning",
        "checkpoint",
    }


def test_no_retired_key_is_known_unless_it_still_works():
    working = {path for path, key in retired().items() if key.fate == "deprecated"}
    assert {path for path in retired() if path in keys()} <= working


@pytest.mark.parametrize(
    ("text", "expected"),
    [("0.19.8", (0, 19, 8)), ("0.16.9+cpu", (0, 16, 9)), ("1.2", None), ("", None), ("x", None)],
)
def test_versions(text, expected):
    assert release(text) == expected
