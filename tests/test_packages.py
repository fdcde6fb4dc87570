"""What is installed holds every folder of code, and every table, undamaged."""

from __future__ import annotations

import csv
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


def test_every_table_gets_installed() -> None:
    setup = ConfigParser()
    setup.read(ROOT / "setup.cfg")
    data = setup["options.package_data"]
    tables = (ROOT / "dsprof").rglob("*.csv")
    folders = {".".join(one.parent.relative_to(ROOT).parts) for one in tables}
    assert folders
    assert [folder for folder in folders if "*.csv" not in data.get(folder, "")] == []


def test_no_row_of_a_table_has_more_cells_than_its_head() -> None:
    """A comma that is not quoted moves the rest of a sentence into the next column."""
    damaged = []
    for table in (ROOT / "dsprof").rglob("*.csv"):
        head, *rows = csv.reader(table.read_text().splitlines())
        damaged += [(table.name, row) for row in rows if len(row) > len(head)]
    assert damaged == []
