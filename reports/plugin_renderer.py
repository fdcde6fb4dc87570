"""Renderers of other packages: what they raise is one line on the terminal."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dsprof.diagnosis.model import Diagnosis
from dsprof.errors import DsprofError
from dsprof.plugins.entry_points import reason
from dsprof.reports.base import Options, Renderer


@dataclass(frozen=True, slots=True)
class PluginRenderer:
    """A renderer that may raise anything."""

    renderer: Renderer[Diagnosis]
    package: str
    name: str
    suffix: str

    def render(self, diagnosis: Diagnosis, options: Options) -> bytes:
        """Return what the plugin makes of a diagnosis.

        Raises:
            DsprofError: it fails.
        """
        try:
            document = self.renderer.render(diagnosis, options)
            if not isinstance(document, bytes):
                raise TypeError(f"it returned {type(document).__name__}, not bytes")
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # code of others: a panic of Rust is no Exception
            raise DsprofError(
                f"format {self.name} of package {self.package} failed: {reason(error)}; choose "
                "another --format, and report this to the maintainers of the package"
            ) from error
        return document


def accepted(renderer: Any, package: str) -> PluginRenderer:
    """Return what a plugin calls a renderer, if it is one.

    Raises:
        Exception: it is none, with the reason.
    """
    if not callable(renderer.render):
        raise TypeError("its render cannot be called")
    if not isinstance(renderer.name, str) or not isinstance(renderer.suffix, str):
        raise TypeError("its name and suffix must be text")
    return PluginRenderer(renderer, package, renderer.name, renderer.suffix)
