"""What rules say of logs."""

from __future__ import annotations

from tests.factories import logs as make
from tests.factories.trace import judged

IB = "NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB [RO]; OOB eth0:10.0.0.1<0>"

SOCKET = "NET/Socket : Using [0]eth0:10.0.0.1<0>"


def findings(rule, lines):
    return judged(rule, *make.read(lines))


def one(rule, lines):
    (finding,) = findings(rule, lines)
    return finding
