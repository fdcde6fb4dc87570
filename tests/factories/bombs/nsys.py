"""Exports of Nsight Systems."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Callable
from pathlib import Path

from tests.factories import exports
from tests.factories.bombs.cases import MIB, case, count


def _export(path: Path, *statements: str) -> None:
    kernels = [(exports.GEMM, i, 0.5) for i in range(20)] + [(exports.NCCL, 9, 5)]
    exports.nsys(path, kernels, [(i, 0.1) for i in range(5)], ranges=[("step 1", 1, 9)])
    with sqlite3.connect(path) as database:
        for statement in statements:
            database.execute(statement)
    database.close()


ENDLESS = "WITH RECURSIVE t(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM t) SELECT"
KERNELS = "CUPTI_ACTIVITY_KIND_KERNEL"
FILL = "INSERT INTO {} WITH RECURSIVE t(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM t LIMIT {}) "


def _view(table: str) -> list[str]:
    return [f"DROP TABLE {table}", f"CREATE VIEW {table} AS {ENDLESS} x AS start FROM t"]


def _many(table: str, columns: str, number: int) -> list[str]:
    return [(FILL.format(table, number)) + f"SELECT {columns} FROM t"]


NSYS: dict[str, Callable[[float], list[str]]] = {
    "view": lambda s: _view(KERNELS),
    "views": lambda s: [
        *_view("StringIds"),
        *(f"CREATE VIEW NVTX{i} AS {ENDLESS} x FROM t" for i in range(100)),
    ],
    "generated": lambda s: [
        "DROP TABLE StringIds",
        "CREATE TABLE StringIds (id, value AS (hex(zeroblob(1000000))))",
        "INSERT INTO StringIds VALUES (1)",
    ],
    "trigger": lambda s: [
        f"CREATE TRIGGER t AFTER INSERT ON StringIds BEGIN DELETE FROM {KERNELS}; END"
    ],
    "blob": lambda s: [
        f"UPDATE StringIds SET value = zeroblob({count(400 * MIB, s)})",
        f"INSERT INTO TARGET_INFO_SYSTEM_ENV VALUES ('Hostname', zeroblob({count(200 * MIB, s)}))",
    ],
    "strings": lambda s: _many("StringIds", "x + 9, hex(randomblob(9))", count(1_000_000, s)),
    "kernels": lambda s: _many(
        KERNELS, f"x, x + 1, x, x, {exports.global_pid(5)}, 1, x", count(500_000, s)
    ),
    "processes": lambda s: _many(KERNELS, "x, x + 1, 0, 7, x << 24, 1, x", count(200_000, s)),
    "devices": lambda s: _many(
        KERNELS, f"x, x + 1, x, 7, {exports.global_pid(5)}, 1, x", count(300_000, s)
    ),
    "ranges": lambda s: [
        *_many("NVTX_EVENTS", "x, x + 9, 'step ' || x, 1 << 24, NULL, NULL", count(500_000, s))
    ],
    "null": lambda s: [f"UPDATE {KERNELS} SET start = NULL, globalPid = 'x', streamId = 1e300"],
    "times": lambda s: [f"UPDATE {KERNELS} SET start = -9e18, end = 9e18"],
    "huge": lambda s: [f"UPDATE {KERNELS} SET start = 9223372036854775807, deviceId = -1"],
    "tables": lambda s: [f"CREATE TABLE a{i} (b)" for i in range(count(20_000, s))],
    "columns": lambda s: [
        f"CREATE TABLE a ({','.join(f'c{i}' for i in range(1900))})",
        *(f"CREATE TABLE b{i} AS SELECT * FROM a" for i in range(count(50, s))),
    ],
}
for word, statements in NSYS.items():
    case("nsys", word)(
        lambda folder, scale, word=word, make_all=statements: _export(
            folder / f"{word}.sqlite", *make_all(scale)
        )
    )


@case("nsys", "changed")
def _changed_exports(folder: Path, scale: float) -> None:
    """Columns that lack, a log of changes that nobody wrote back, and schemas edited by hand."""
    for name in ("start", "end", "globalPid", "demangledName", "streamId", "deviceId"):
        exports.nsys(folder / f"no_{name}.sqlite", [("a", 1, 1)], without={f"{KERNELS}.{name}"})
    wal = folder / "wal.sqlite"
    _export(wal)
    database = sqlite3.connect(wal)
    database.execute("PRAGMA journal_mode=WAL")
    database.execute(f"DELETE FROM {KERNELS}")
    database.commit()
    log = (folder / "wal.sqlite-wal").read_bytes()
    database.close()
    (folder / "wal.sqlite-wal").write_bytes(log)
    whole = folder / "whole.sqlite"
    _export(whole)
    data = whole.read_bytes()
    generator = random.Random(5)
    for number in range(count(200, scale)):
        damaged = bytearray(data)
        for _ in range(generator.randint(1, 60)):
            damaged[generator.randrange(len(damaged))] = generator.randrange(256)
        damaged[:16] = data[:16]
        (folder / f"damaged{number}.sqlite").write_bytes(damaged)
