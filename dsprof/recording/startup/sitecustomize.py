"""Runs at every start of a Python below `dsprof run`, for torch before 2.6; it must never raise."""

from __future__ import annotations

import os
import sys


def _start_with_torch() -> None:
    try:
        import dsprof_autostart
        from dsprof.hooks.patching import when_imported

        when_imported("torch", lambda: dsprof_autostart.autostart())
    except Exception:  # noqa: BLE001
        sys.stderr.write("dsprof: not importable in this Python: nothing is recorded here\n")


def _run_the_one_we_hide() -> None:
    """Run the sitecustomize that would have been found without ours."""
    from importlib.machinery import PathFinder
    from importlib.util import module_from_spec

    here = os.path.dirname(os.path.abspath(__file__))
    others = [folder for folder in sys.path if os.path.abspath(folder) != here]
    spec = PathFinder.find_spec("sitecustomize", others)
    if spec is None or spec.loader is None:
        return
    module = module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


_start_with_torch()
_run_the_one_we_hide()
