"""Makes DeepSpeed's configuration of each object in a file; prints the errors as JSON, "" if none.

No engine is made: that takes a device, and libraries that some configurations ask for.
"""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path
from typing import Any

from deepspeed.runtime.config import DeepSpeedConfig


def main() -> None:
    logging.disable(logging.CRITICAL)
    print(json.dumps([error_of(config) for config in json.loads(Path(sys.argv[1]).read_text())]))


def error_of(config: dict[str, Any]) -> str:
    try:
        DeepSpeedConfig(config)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


if __name__ == "__main__":
    main()
