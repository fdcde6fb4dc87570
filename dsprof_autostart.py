"""The entry point that torch calls at the end of its import (entry point group torch.backends).

An exception here would fail the user's `import torch`: whatever is wrong with dsprof or its
dependencies is said in one line, and the run goes on without it. It is no part of the package, for
to find that would run dsprof/__init__.py first, or a script of the user's own by that name.
"""

import os


def autostart() -> None:
    """Start recording if DSPROF, or its mirror for remote nodes, asks for it."""
    if not (os.environ.get("DSPROF") or os.environ.get("PYTHON_DSPROF")):
        return
    try:
        from dsprof.config import is_switched_on, load_config, mirrored
        from dsprof.recording import session

        if is_switched_on(os.environ):
            os.environ.update(mirrored(os.environ))
            session.start(load_config(os.environ, {}), torch_is_complete=True)
    except Exception as error:
        import contextlib
        import sys

        with contextlib.suppress(OSError, ValueError):  # a full or closed stderr is not ours either
            print(f"dsprof: not recording: {error}", file=sys.stderr)
