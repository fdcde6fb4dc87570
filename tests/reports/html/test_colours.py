"""Colours that are next to each other differ for colour-blind readers, too."""

from __future__ import annotations

import itertools
import re

import numpy as np
import pytest

from dsprof.reports.content import PARTS, Part, StepBar
from dsprof.reports.html.drawing import SERIES
from dsprof.reports.html.step_drawings import step_bar
from dsprof.reports.html.templates import asset

LEAST = 12.0  # CIE76: from 10 on, colours are taken for different at a glance

# Machado, Oliveira and Fernandes (2009), full severity, on linear RGB.
SIGHT = {
    "usual": np.eye(3),
    "protanopia": [
        [0.152286, 1.052583, -0.204868],
        [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ],
    "deuteranopia": [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.011820, 0.042940, 0.968881],
    ],
    "tritanopia": [
        [1.255528, -0.076749, -0.178779],
        [-0.078411, 0.930809, 0.147602],
        [0.004733, 0.691367, 0.303900],
    ],
}
XYZ = [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]
WHITE = [0.9505, 1.0, 1.089]
TOGETHER = (
    (
        *("compute", "exposed_comm", "copies", "idle", "other"),
        *("phase-forward", "phase-backward", "phase-step"),
    ),
    tuple(f"series-{n}" for n in range(1, SERIES + 1)),
)


def seen(colour: str, sight: str) -> np.ndarray:
    """CIELAB coordinates of `#rrggbb`, as someone sees it."""
    rgb = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    xyz = XYZ @ np.clip(SIGHT[sight] @ linear, 0, 1) / WHITE
    x, y, z = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def palette(scheme: str) -> dict[str, str]:
    """Colours by name."""
    light, dark = asset("base.css").split("prefers-color-scheme: dark", 1)
    return dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", light if scheme == "light" else dark))


def luminance(colour: str) -> float:
    """Relative luminance of `#rrggbb`, as WCAG 2 defines it."""
    rgb = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    return float(linear @ XYZ[1])


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_words_inside_a_bar_can_be_read(scheme: str) -> None:
    colours = palette(scheme)
    parts = [Part(key, key, 1, 1 / len(PARTS)) for key in PARTS]
    drawn = step_bar(StepBar("", tuple(parts), len(parts), None, None, None))
    for word, part in zip(drawn.words, parts, strict=True):
        dark, pale = sorted(map(luminance, (colours[word.colour or "paper"], colours[part.key])))
        assert (pale + 0.05) / (dark + 0.05) >= 4.5, part.key


def test_the_script_has_as_many_colours_as_the_drawings() -> None:
    assert f" SERIES = {SERIES}," in asset("timeline.js")


@pytest.mark.parametrize("sight", SIGHT)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_colours_differ_for_every_sight(scheme: str, sight: str) -> None:
    colours = palette(scheme)
    for names in TOGETHER:
        for one, other in itertools.combinations(names, 2):
            apart = np.linalg.norm(seen(colours[one], sight) - seen(colours[other], sight))
            assert apart >= LEAST, (one, other, apart)
