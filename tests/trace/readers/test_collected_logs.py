"""The same log, as it is, and as collectors and loggers keep it."""

from __future__ import annotations

import json
from html import escape

import pytest

from dsprof.trace.rank_log import EXCEPTION, FAILED_FIRST, LAUNCHER
from dsprof.trace.readers.logs import LogReader
from dsprof.trace.readers.logs.lines import MarkedLines
from dsprof.trace.source import Source
from tests.factories import logs as make

LINES = [
    "[2026-05-19 20:17:24,123] [INFO] [config.py:906:print]   json = {",
    '    "zero_optimization": {',
    '        "stage": 3',
    "    },",
    '    "betas": [0.9, 0.95]',
    "}",
    "NCCL version 2.21.5+cuda12.4",
    make.said('NET/Socket : Using [0]eth0:10.0.0.1<0>, "quoted"', 1),
    *make.every("Using network Socket", 2),
    *(make.ready(rank, 2) for rank in (0, 1)),
    "[rank1]: Traceback (most recent call last):",
    '[rank1]:   File "train.py", line 1, in <module>',
    "[rank1]: ValueError: too large",
    "Root Cause (first observed failure):",
    "[0]:",
    "  rank      : 1 (local_rank: 1)",
    "  exitcode  : 1 (pid: 11)",
    "[2026-05-19 20:18:24,123] [ERROR] [launch.py:1:f] ['train.py'] exits with return code = -9",
]


def time(i):
    return f"2026-05-19T20:17:{i:02}.{i}Z"


def an_object(name, **more):
    return lambda i, line: json.dumps({**more, name: line + "\n", "time": time(i)})


def before(text):
    return lambda i, line: text.format(time=time(i)) + line


def quoted(i, line):
    return '{},"{}"'.format(time(i), line.replace('"', '""'))


@pytest.mark.parametrize(
    "kept",
    [
        before("[pod/train-worker-0/pytorch] "),
        before("[pod/train-worker-0/pytorch] {time} "),
        before("{time} stderr F "),
        before("worker-1  | "),
        before("train-worker-0 pytorch "),
        before("May 19 20:17:24 node1 torchrun[123]: "),
        before("ERROR\t{time}\tworkerpool0-0\t"),
        before("2026/05/19 20:17:24 "),
        before("\r 10%|# | 1/10 [00:01<00:09]\r"),
        an_object("log", stream="stderr"),
        an_object("message", level="ERROR"),
        an_object("MESSAGE", _PID="12"),
        an_object("line", labels={"pod": "train"}),
        lambda i, line: f"{time(i)}\tkube.train\t" + json.dumps({"log": line}),
        quoted,
        lambda _, line: escape(line),
        lambda _, line: json.dumps({"log": escape(line)}),
    ],
)
def test_what_is_put_around_each_line_changes_nothing(kept):
    assert told([kept(i, line) for i, line in enumerate(LINES)]) == told(LINES)


TABLES = [
    "# Collective test starting: all_reduce_perf",
    "# Using devices",
    "#  Rank  0 Group  0 Pid  123 on      node1 device  0 [0x17] NVIDIA A100",
    "#       size         count      type   redop    root     time   algbw   busbw #wrong",
    "     8388608       2097152     float     sum      -1    90.1   93.11   93.11      0",
    "The average bandwidth of all_reduce over 8 ranks (3 warmups, 5 trials):",
    "| payload |    busbw   |    algbw   |",
    "| ------: | ---------: | ---------: |",
    "|    4GiB |  356.10GBps |  190.10GBps |",
    *make.table("broadcast", ("2.0 KB", 146, 11.12, 0.08, 0.43, 0.41)),
]


@pytest.mark.parametrize(
    "kept",
    [
        before("[pod/train-worker-0/pytorch] "),
        before("{time} stderr F "),
        before("worker-1  | "),
        before("May 19 20:17:24 node1 mpirun[123]: "),
    ],
)
def test_what_is_put_around_the_lines_of_a_table_changes_nothing(kept):
    plain, collected = (
        make.read(lines)[0].log
        for lines in (TABLES, [kept(i, line) for i, line in enumerate(TABLES)])
    )
    assert len(plain.measured) == 2
    assert plain.measured[0].host_names == ("node1",)
    assert plain.calls
    assert (collected.measured, collected.calls) == (plain.measured, plain.calls)


@pytest.mark.parametrize(
    "records",
    [
        {"events": [{"timestamp": i, "message": line} for i, line in enumerate(LINES)]},
        [{"insertId": "a", "textPayload": line, "severity": "ERROR"} for line in LINES],
        [{"jsonPayload": {"levelname": "INFO", "message": line + "\n"}} for line in LINES],
        [{"message": "\n".join(LINES), "level": "INFO"}],
    ],
)
def test_exports_of_records_hold_the_lines_of_a_log(records):
    assert told(json.dumps(records, indent=2).split("\n")) == told(LINES)


def test_a_log_of_records_may_hold_other_lines():
    half = len(LINES) // 2
    records = [json.dumps({"message": line, "pid": 1}) for line in LINES[half:]]
    assert told([*LINES[:half], *records]) == told(LINES)
    assert told(['{"step": 1}', "{", *LINES]) == told(LINES)


def test_half_a_character_is_replaced():
    lines = ["[rank1]: Traceback (most recent call last):", r"[rank1]: ValueError: \ud83d"]
    (trace,) = make.read([f'{{"log": "{line}"}}' for line in lines])
    assert trace.log.values(EXCEPTION) == {"ValueError: ?": 1}


def test_json_that_logs_nothing_is_no_log():
    advice = {"line": "Set NCCL_DEBUG=INFO.", "title": "NCCL version 2.21.5+cuda12.4"}
    assert not LogReader().recognises(json.dumps(advice, indent=1).encode())


def test_a_bar_that_is_overwritten_is_no_line(tmp_path):
    path = tmp_path / "log"
    path.write_bytes(b"\r 10%\r 20%\r\nmark\r 30%\rlast\r\n\n")
    with Source(path) as source:
        lines = MarkedLines(source, [b"mark"])
        lines.takes_all = True
        assert [*lines] == [" 20%", "mark", "last", ""]


def test_a_configuration_ends_where_its_lines_do():
    cut = make.read([LINES[0], LINES[1], *LINES[6:]])
    assert not any(trace.engines for trace in cut)
    assert cut[0].log.values(LAUNCHER)


def told(lines):
    """What a log says of two ranks, whatever it looks like."""
    data = "\n".join(lines).encode()
    assert LogReader().recognises(data)
    first, second = make.read(data)
    kinds = (EXCEPTION, FAILED_FIRST, LAUNCHER, "version", "network", "network devices for TCP")
    facts = [{kind: trace.log.values(kind) for kind in kinds} for trace in (first, second)]
    written = [engine.written for engine in first.engines.values()]
    assert written
    assert facts[1][FAILED_FIRST]
    return facts, written
