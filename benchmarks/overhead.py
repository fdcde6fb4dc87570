"""Prints what recording costs, as Markdown: per step, per collective, and at import.

python -m benchmarks.overhead
"""

import itertools
import json
import operator
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

from tests.dist.launch import environment, launch

HERE = Path(__file__).parent
DEAREST = 6  # hooks that are named
HEAVY = ("jinja2", "yaml", "psutil", "rich", "dask")
IMPORT = f"""
import sys, time, torch
start = time.perf_counter()
import dsprof
print((time.perf_counter() - start) * 1e3, *[name for name in {HEAVY} if name in sys.modules])
"""

Row = tuple[str, ...]

# What costs how much more than what, and the goal: of what C++ issues, and of what Python does.
_KERNELS: tuple[Row, ...] = (
    ("bare kernel", "plain", ""),
    ("auto", "bare kernel", "4 µs"),
    ("dispatcher", "bare kernel", "4 µs"),
    ("native", "bare kernel", "2.5 µs"),
)
_METHODS: tuple[Row, ...] = (
    *_KERNELS,
    ("process_group", "plain", "3.5 µs"),
    ("process_group", "bare kernel", "2.5 µs"),
)

TRAININGS = ("ZeRO-2", "ZeRO-3", "DDP", "FSDP2")


def training_rows() -> Iterator[Row]:
    """Yield a row for each way to train and each recorder, two ranks over gloo."""
    for training in TRAININGS:
        scales = trained("overhead_training.py", training)
        half, small = scales["half"], scales["small"]
        wall_ms = median(rounds(half["bare"], "wall_ms"))
        yield (training, "bare", f"{wall_ms:.0f} ms", "", "", "")
        for name in list(half)[1:]:
            walls = sorted(against_bare(half, name, "wall_ms", operator.truediv))
            thread_ms = median(against_bare(small, name, "thread_ms", operator.sub))
            writer_ms = median(rounds(half[name], "writer_ms"))
            yield (
                training,
                name,
                f"{median(walls):.3f} ({walls[0]:.3f} to {walls[-1]:.3f})",
                f"{thread_ms:+.2f} ms",
                f"{writer_ms:.2f} ms",
                f"{(thread_ms + writer_ms) / wall_ms:+.2%}",
            )


def hook_rows() -> Iterator[Row]:
    """Yield what hooks take of a step, the most expensive ones by name, and their share of it."""
    for training, scale in itertools.product(TRAININGS, ("half", "demo")):
        result = trained("overhead_hooks.py", training, scale)
        found, clocks = result["dsprof"], result["clocks"]["hooks"]
        spent = {
            name: (one["us"] - clocks.get(name, {"us": 0.0})["us"], one["calls"])
            for name, one in found["hooks"].items()
        }
        hooks_ms, wall_ms = sum(us for us, _ in spent.values()) / 1e3, found["wall_ms"]
        writer_ms = found["writer_ms"]
        share = f"{(hooks_ms + writer_ms) / wall_ms:.2%} of {wall_ms:.0f} ms"
        training = f"{training}, {scale}"
        yield (training, "all hooks", "", f"{hooks_ms:.2f} ms", f"{writer_ms:.2f} ms", share)
        for name in sorted(spent, key=lambda name: -spent[name][0])[:DEAREST]:
            us, calls = spent[name]
            yield (training, f"`{name}`", f"{calls:.0f}", f"{us / 1e3:.2f} ms", "", "")


def watching_rows() -> Iterator[Row]:
    """Yield the share of a core that each part of a watched run takes at 10 steps a second."""
    found = trained("overhead_watching.py")
    alone, watched = found["recording"], found["recording, metrics_port"]
    for name, share in watched.items():
        yield (name, f"{alone[name]:.2%}" if name in alone else "", f"{share:.2%}")


def trained(program: str, *training: str) -> Any:
    """Return what a program measured of one way to train, in processes of its own.

    For what one uses changes where dsprof looks in the next.
    """
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "measured.json"
        launch(HERE / program, args=[out, *training], timeout=1800).check()
        return json.loads(out.read_text())


def rounds(variant: list[dict[str, Any]], what: str) -> list[float]:
    return [figures[what] for figures in variant]


def against_bare(
    variants: dict[str, Any], name: str, what: str, by: Callable[[float, float], float]
) -> list[float]:
    """Compare each round with the bare one of the same minute."""
    return list(map(by, rounds(variants[name], what), rounds(variants["bare"], what)))


def call_rows() -> Iterator[Row]:
    """Yield what one collective with its wait costs the training thread, in its parts."""
    result = json.loads(python("-m", "benchmarks.overhead_calls"))
    for kind, mark, rows in (
        ("calls", "", _METHODS),
        ("functional", "functional: ", _KERNELS),
        ("cold", "cold: ", _METHODS),
    ):
        calls = {name: (issue / 1e3, wait / 1e3) for name, (issue, wait) in result[kind].items()}
        yield (f"{mark}plain all_reduce and wait, fake backend", *micros(*calls["plain"]), "")
        for name, base, goal in rows:
            above = micros(*minus(calls[name], calls[base]))
            yield (f"{mark}{name}, above {base}", *above, goal if kind != "cold" else "")
    ends = result["million"]
    ratio = ends["last half"] / ends["first half"]
    yield ("call 500,001 to 1,000,000 / call 1 to 500,000", "", "", f"{ratio:.3f}", "constant")


def minus(one: tuple[float, ...], other: tuple[float, ...]) -> tuple[float, ...]:
    return tuple(map(operator.sub, one, other))


def micros(issue: float, wait: float) -> Row:
    return (f"{issue:.2f} µs", f"{wait:.2f} µs", f"{issue + wait:.2f} µs")


def import_rows() -> Iterator[Row]:
    """Yield how long `import dsprof` takes once torch is there, and what it drags in."""
    lines = [python("-c", IMPORT).split() for _ in range(5)]
    yield (
        "import dsprof after torch",
        f"{median(float(line[0]) for line in lines):.1f} ms",
        "10 ms",
    )
    yield (f"of {', '.join(HEAVY)} imported", " ".join(lines[0][1:]) or "none", "none")


def python(*args: str) -> str:
    """Run Python with the entry point of dsprof off, and return what it prints."""
    env = environment({"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"})
    done = subprocess.run([sys.executable, *args], env=env, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr)
    return done.stdout


def print_table(head: Row, rows: Iterator[Row]) -> None:
    for row in (head, ("---",) * len(head), *rows):
        print("|", " | ".join(row), "|", flush=True)
    print()


def main() -> None:
    measured = ("wall / bare (range)", "training thread", "writer", "CPU / step")
    print_table(("training", "recorder", *measured), training_rows())
    print_table(("share of a core at 10 steps/s", "recording", "and watched"), watching_rows())
    head = ("training", "hook", "calls / step", "training thread", "writer", "CPU / step")
    print_table(head, hook_rows())
    print_table(("one collective", "issue", "wait", "together", "goal"), call_rows())
    print_table(("import", "cost", "limit"), import_rows())


if __name__ == "__main__":
    main()
