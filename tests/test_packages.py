"""What is installed holds every folder of code."""

from __future__ import annotations

from configparser import ConfigParser
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_every_folder_of_code_is_a_package_that_gets_installed() -> None:
    setup = ConfigParser()
    setup.read(ROOT / "setup.cfg")
    listed = setup["options"]["packages"].split()
    top = {"dsprof": "dsprof", "hooks": "dsprof.hooks", "reports": "dsprof.reports"}
    found = {
        ".".join([package, *init.parent.relative_to(ROOT / folder).parts])
        for folder, package in top.items()
        for init in (ROOT / folder).rglob("__init__.py")
    }
    assert sorted(found) == sorted(listed)
