"""The command `dsprof`, started on each rank by a launcher: arguments are its own."""

import sys

from dsprof.__main__ import main

sys.exit(main())
