"""Reports: a diagnosis as a page, as terminal text, as JSON.

A format is a module or package here that has a `RENDERER`, or a plugin. What is heavy (jinja2)
is imported by the renderer that needs it, when it renders.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from dsprof.diagnosis.model import Diagnosis
from dsprof.errors import DsprofError
from dsprof.files.redaction import map_text, redact_text
from dsprof.plugins import entry_points
from dsprof.plugins.parts import in_folder
from dsprof.reports.base import Link, Options, Renderer, renderer_of
from dsprof.reports.plugin_renderer import accepted
from dsprof.reports.write import write_whole

__all__ = ["RENDERERS", "Options", "Renderer", "formats", "render", "write_whole"]

RENDERERS: tuple[Renderer[Diagnosis], ...] = tuple(in_folder(__name__, "RENDERER"))


def formats() -> list[str]:
    """Return the names of all formats; plugins are not loaded for that."""
    built_in = [renderer.name for renderer in RENDERERS]
    return list(
        dict.fromkeys((*built_in, *(point.name for point in entry_points.group("renderers"))))
    )


@cache
def renderer(format_name: str) -> Renderer[Diagnosis]:
    """Return the renderer of a format; of plugins only that one is loaded.

    Raises:
        DsprofError: there is no such format, or its plugin cannot be loaded.
    """
    built_in = [one.name for one in RENDERERS]
    points = [point for point in entry_points.group("renderers") if point.name == format_name]
    if format_name in built_in or not points:
        return renderer_of(RENDERERS, format_name)
    found = entry_points.load(points, accepted, lambda one: one.name, built_in)
    if not found:
        raise DsprofError(entry_points.problems()[-1])
    if found[0].name != format_name:
        raise DsprofError(f"plugin {format_name}: the name of its renderer is {found[0].name}")
    return found[0]


def render(
    diagnosis: Diagnosis,
    format_name: str,
    *,
    is_static: bool = False,
    width: int | None = None,
    colour: bool = False,
    links: Sequence[Link] = (),
) -> bytes:
    """Render `diagnosis` with the renderer called `format_name`.

    Raises:
        DsprofError: there is no such format, or a plugin cannot render it.
    """
    options = Options(is_static=is_static, width=width, colour=colour, links=links)
    shown = map_text(diagnosis, redact_text)  # it quotes logs and files of other programs
    return renderer(format_name).render(shown, options)
