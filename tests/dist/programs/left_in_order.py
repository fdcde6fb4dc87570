"""Runs another program as it would run itself, and ends when no thread needs the GIL any more.

left_in_order.py PROGRAM [ARGUMENT...]
"""

import runpy
import sys

from tests.dist.leaving import wait_for_threads

if __name__ == "__main__":
    del sys.argv[0]
    runpy.run_path(sys.argv[0], run_name="__main__")
    wait_for_threads()
