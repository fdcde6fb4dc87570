"""Renderers: each is one way to show a diagnosis, or a comparison of two."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, NamedTuple, Protocol, TypeVar

from dsprof.errors import DsprofError
from dsprof.files.redaction import map_text, redact_text

Shown = TypeVar("Shown")
Shown_contra = TypeVar("Shown_contra", contravariant=True)


class Link(NamedTuple):
    """A page beside this one."""

    label: str
    address: str


@dataclass(frozen=True, slots=True)
class Options:
    """Wishes of the reader; a renderer takes from them what concerns it."""

    is_static: bool = False  # the timeline of the page cannot be zoomed: it is small
    width: int | None = None  # columns of the terminal; None: DEFAULT_WIDTH
    colour: bool = False  # the output goes to a terminal that shows ANSI colours
    links: Sequence[Link] = ()  # of a page that is served: to other steps


class Renderer(Protocol[Shown_contra]):
    """Shows a result in one format; the same input always gives the same bytes."""

    @property
    def name(self) -> str:
        """The name of the format on the command line."""

    @property
    def suffix(self) -> str:
        """Ending of a file of this format, with the dot."""

    def render(self, shown: Shown_contra, options: Options, /) -> bytes:
        """Return the whole document."""
        ...


@dataclass(frozen=True, slots=True)
class Format(Generic[Shown]):
    """A renderer that is a function."""

    name: str
    suffix: str
    render: Callable[[Shown, Options], bytes]


def render_in(
    renderers: Sequence[Renderer[Shown]],
    shown: Shown,
    format_name: str,
    *,
    width: int | None = None,
    colour: bool = False,
) -> bytes:
    """Render with the renderer called `format_name`; secrets in quoted texts are redacted.

    Raises:
        DsprofError: there is no such format.
    """
    options = Options(width=width, colour=colour)
    return renderer_of(renderers, format_name).render(map_text(shown, redact_text), options)


def renderer_of(renderers: Sequence[Renderer[Shown]], format_name: str) -> Renderer[Shown]:
    """Return the renderer of this name.

    Raises:
        DsprofError: there is no such format.
    """
    for renderer in renderers:
        if renderer.name == format_name:
            return renderer
    names = ", ".join(renderer.name for renderer in renderers)
    raise DsprofError(f"unknown format {format_name!r}; known: {names}")
