"""Runs a script as a rank that was forked where torch was imported: `forked.py SCRIPT ...`."""

import os
import runpy
import sys

from tests.forked import as_imported

del sys.argv[0]
sys.path.insert(0, os.path.dirname(sys.argv[0]))
with as_imported():
    runpy.run_path(sys.argv[0], run_name="__main__")
