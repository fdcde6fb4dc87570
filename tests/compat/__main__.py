"""Tries dsprof with older releases beside what is installed, and writes the page of compatibility.

    python -m tests.compat [deepspeed | torch] [RELEASE...]

Ends with exit code 1 if something does not hold.
"""

from __future__ import annotations

import sys

from tests.compat import deepspeeds, page, torches

HALVES = {"deepspeed": deepspeeds.part, "torch": torches.part}


def main() -> None:
    half, releases = sys.argv[1:2], sys.argv[2:]
    if not set(half) <= set(HALVES):
        sys.exit(f"{half[0]}: choose {' or '.join(HALVES)}")
    well = True
    for name in half or HALVES:
        part = HALVES[name](releases)
        page.write(name, part)
        print("\n".join(part.lines), flush=True)
        well = well and part.holds
    sys.exit(0 if well else 1)


if __name__ == "__main__":
    main()
