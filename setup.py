"""Builds what there is in C, where there is a compiler; Python does the same without it."""

from pathlib import Path

from setuptools import Extension, setup

HOT = Path("dsprof/recording/recorder/c")


def extension(name: str, sources: list[str], depends: tuple[str, ...] = ()) -> Extension:
    """Return a module for any Python from 3.10 on."""
    macros = [("Py_LIMITED_API", "0x030A0000")]
    return Extension(
        name,
        sources,
        depends=[*depends],
        define_macros=macros,
        extra_compile_args=["-fvisibility=hidden"],
        py_limited_api=True,
        optional=True,
    )


PARSER = extension("dsprof.trace._comm_rows", ["dsprof/trace/_comm_rows.c"])
HOOKS = extension(
    "dsprof.recording.recorder._hot",
    sorted(str(path) for path in HOT.glob("*.c")),
    tuple(str(path) for path in HOT.glob("*.h")),
)

setup(ext_modules=[PARSER, HOOKS], options={"bdist_wheel": {"py_limited_api": "cp310"}})
