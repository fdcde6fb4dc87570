"""Measures the size of the page of a run of many ranks, and the time to its first figure."""

from __future__ import annotations

from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from tests import browser

_LARGEST_BYTES = 3_000_000
_LATEST_FIGURE_MS = 1500

_FIRST_FIGURE = """(async () => {
  const figure = document.querySelector("figure svg, svg");
  while (document.readyState === "loading" || !figure || !figure.getBoundingClientRect().width)
    await new Promise((f) => setTimeout(f, 5));
  const paint = performance.getEntriesByName("first-contentful-paint")[0];
  return Math.max(performance.timing.domInteractive - performance.timing.navigationStart,
                  paint ? paint.startTime : 0);
})()"""
"""The first figure is a drawing in the page itself: it is there once that is parsed and painted."""


def said(what: str, holds: bool) -> bool:
    """Print whether something holds."""
    print(f"    {what}: {'yes' if holds else 'NO'}", flush=True)
    return holds


def look_at(page: bytes) -> bool:
    """Measure a page, in a browser where there is one."""
    is_small = said(f"page of {len(page) / 1e6:.2f} MB, at most 3", len(page) <= _LARGEST_BYTES)
    if browser.EXECUTABLE is None:
        return is_small
    with TemporaryDirectory() as folder, browser.chromium() as chromium:
        path = Path(folder) / "page.html"
        path.write_bytes(page)
        figure_ms = median(chromium.open(path).evaluate(_FIRST_FIGURE) for _ in range(3))
    is_quick = figure_ms <= _LATEST_FIGURE_MS
    return said(f"first figure after {figure_ms / 1e3:.2f} s, at most 1.5", is_quick) and is_small
