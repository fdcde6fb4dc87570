"""Files of every kind that is read, made to break their readers: huge, nested, wrong, endless.

A maker writes the files of one case into a folder. `scale` is 1 in `make fuzz`, where files take
what a gigabyte of memory must not, and small in the tests, where only what is cheap is full size.
"""

from tests.factories.bombs import (
    chakra_graphs,
    configurations,
    diagnoses,
    execution_traces,
    folders,
    logs,
    native,
    nccl_inspector,
    nsys,
    pickles,
    torch_profiles,
    zips,
)
from tests.factories.bombs.cases import CASES

__all__ = [
    "CASES",
    "chakra_graphs",
    "configurations",
    "diagnoses",
    "execution_traces",
    "folders",
    "logs",
    "native",
    "nccl_inspector",
    "nsys",
    "pickles",
    "torch_profiles",
    "zips",
]
