"""Compiles the helper that DeepSpeed loads when it first starts on a CPU: no run waits for it.

A compile takes a minute or two. One that was killed leaves a lock on which every later run hangs,
without a word: it is removed here, where no other warm-up can be under way.
"""

import fcntl
import os
from pathlib import Path

ROOT = Path(__file__).parents[2]
EXTENSIONS = Path(os.environ.get("TORCH_EXTENSIONS_DIR", ROOT / "build" / "torch_extensions"))


def warm() -> None:
    """Compile the helper in `EXTENSIONS` unless it is there."""
    EXTENSIONS.mkdir(parents=True, exist_ok=True)
    with (EXTENSIONS / "warm-up").open("w") as guard:
        fcntl.flock(guard, fcntl.LOCK_EX)
        for lock in EXTENSIONS.glob("*/lock"):
            lock.unlink()
        os.environ["TORCH_EXTENSIONS_DIR"] = str(EXTENSIONS)
        os.environ["DS_ACCELERATOR"] = "cpu"
        from deepspeed.ops.op_builder.cpu import ShareMemCommBuilder

        ShareMemCommBuilder().load(verbose=False)


if __name__ == "__main__":
    warm()
