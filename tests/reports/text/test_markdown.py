"""The page of a rule on a terminal."""

from __future__ import annotations

from dsprof.reports.base import Options
from dsprof.reports.text.markdown import EXPLANATION

_PAGE = """\
# slow-thing\x1b[1m

A thing is *slow*: its `share` is **at
least** `least_share` ([more](../there.md)).

## What to do

1. Set `a.b`.
   - A point that is so long that it does not fit the line.
2. See:

   ```python
   fast = \x1b[1m
   ```

| name | meaning |
| --- | --- |
| `share` | `share` of `x` |

> Of a
>
> plugin.

-
"""


def test_marks_and_links_are_left_out_and_the_rest_is_laid_out() -> None:
    lines = EXPLANATION.render(_PAGE, Options(width=60)).decode().splitlines()
    assert lines == [
        "slow-thing?[1m",
        "",
        "A thing is slow: its 'share' is at least least_share (more).",
        "",
        "WHAT TO DO",
        "",
        "1. Set a.b.",
        "   - A point that is so long that it does not fit the line.",
        "2. See:",
        "       fast = ?[1m",
        "",
        "  name   meaning",
        "  share  'share' of 'x'",
        "",
        "  Of a",
        "",
        "  plugin.",
        "",
        "-",
    ]
