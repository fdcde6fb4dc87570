"""What each hook would find in the libraries that are here, without recording anything.

`python -m dsprof.hooks.inventory INTERCEPTION` prints it as JSON on its last line, for
`dsprof doctor`.
"""

from __future__ import annotations

import importlib
import json
import sys

from dsprof.hooks.base import Hook, Target
from dsprof.hooks.native import has_kernels
from dsprof.hooks.registry import hooks_for


def inventory(interception: str) -> dict[str, str]:
    """Return for each hook why it would be off, "" if it would not.

    Hooks of a library that is not installed are left out.
    """
    found, why_not = {}, ""
    try:
        in_cpp = has_kernels(interception)
    except Exception as error:
        in_cpp, why_not = False, str(error)
    for hook in hooks_for(interception, in_cpp=in_cpp):
        why = _why_off(hook)
        if why is not None:
            found[hook.name] = why
    if in_cpp or why_not:
        found["native"] = why_not
    return found


def _why_off(hook: type[Hook]) -> str | None:
    for target in hook.targets:
        if not target.optional:
            try:
                importlib.import_module(target.needs)
                target.resolve()
            except Exception as error:
                return None if _is_absent(target, error) else f"{type(error).__name__}: {error}"
    return ""


def _is_absent(target: Target, error: Exception) -> bool:
    library = target.needs.partition(".")[0]
    return isinstance(error, ModuleNotFoundError) and error.name == library


if __name__ == "__main__":
    print(f"\n{json.dumps(inventory(sys.argv[1]))}")
