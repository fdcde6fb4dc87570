"""Size and speed of the report page in headless Chromium: `python -m benchmarks.report_page`.

Prints, for 8 ranks and 50 steps: the size, how long it takes to make, when verdict and findings
are on the screen, and how long the timeline takes to be drawn once it is scrolled to.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path

from dsprof.reports import render
from tests import browser
from tests.factories import diagnosis as factory

REPEATS = 5

FIRST_PAINT = """performance.getEntriesByName("first-contentful-paint")[0]?.startTime"""

FIRST_FIGURE = """(async () => {
  const start = performance.now();
  document.getElementById("timeline").scrollIntoView({ behavior: "instant" });
  while (document.querySelector(".live[hidden]")) await new Promise((f) => setTimeout(f, 5));
  await new Promise((f) => requestAnimationFrame(() => requestAnimationFrame(f)));
  return performance.now() - start;
})()"""


def main() -> None:
    start = time.perf_counter()
    data = render(factory.diagnosis(8, 50), "html")
    made_s = time.perf_counter() - start
    print(f"size            {len(data) / 1e6:8.2f} MB   (limit 2.2)")
    static = len(render(factory.diagnosis(8, 50), "html", is_static=True))
    print(f"static          {static / 1e6:8.2f} MB   (limit 0.4)")
    print(f"made in         {made_s:8.2f} s    (jinja2 imported)")
    with tempfile.TemporaryDirectory() as folder, browser.chromium() as chromium:
        path = Path(folder) / "report.html"
        path.write_bytes(data)
        paints_ms, figures_ms = zip(
            *(_measure(chromium, path) for _ in range(REPEATS)), strict=True
        )
    _show("first paint", paints_ms, "0.3")
    _show("timeline", figures_ms, "2.5")


def _measure(chromium: browser.Browser, path: Path) -> tuple[float, float]:
    page = chromium.open(path)
    page.wait(FIRST_PAINT)
    return page.evaluate(FIRST_PAINT), page.evaluate(FIRST_FIGURE)


def _show(name: str, values_ms: tuple[float, ...], limit_s: str) -> None:
    middle, worst = statistics.median(values_ms) / 1e3, max(values_ms) / 1e3
    print(f"{name:<15} {middle:8.2f} s    (worst of {REPEATS}: {worst:.2f}; limit {limit_s})")


if __name__ == "__main__":
    main()
