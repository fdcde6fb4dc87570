"""Builds the parser of traces in C where there is a compiler; without it msgspec reads them all."""

from setuptools import Extension, setup

PARSER = Extension(
    "dsprof.trace._comm_rows",
    ["dsprof/trace/_comm_rows.c"],
    define_macros=[("Py_LIMITED_API", "0x030A0000")],
    py_limited_api=True,
    optional=True,
)

setup(ext_modules=[PARSER], options={"bdist_wheel": {"py_limited_api": "cp310"}})
