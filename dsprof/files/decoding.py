"""What is raised where bytes or text are not what they should be."""

from __future__ import annotations

import msgspec

UNDECODABLE = (msgspec.DecodeError, UnicodeError, RecursionError)
"""What msgspec raises at data that are damaged, of another form, or nested too deeply."""
