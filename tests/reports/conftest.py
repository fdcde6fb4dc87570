"""A browser for the tests of a module."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests import browser


@pytest.fixture(scope="module")
def chromium() -> Iterator[browser.Browser]:
    with browser.chromium() as started:
        yield started
