"""Readers of other packages: what they raise makes one file unreadable, and nothing else."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from dsprof.environment import EnvSnapshot
from dsprof.errors import TraceError
from dsprof.plugins.entry_points import note, reason
from dsprof.trace.rank_trace import RankTrace, refuse_reversed
from dsprof.trace.readers.base import Facts, Reader
from dsprof.trace.schema import LARGEST_WORLD, EngineConfig, Header, Trailer

T = TypeVar("T")


@dataclass(slots=True)
class PluginReader:
    """A reader that may raise anything, and may return anything."""

    reader: Reader
    package: str
    name: str
    tells: Facts
    order: int

    def recognises(self, start: bytes) -> bool:
        """Ask the plugin; if it fails the file is none of its own, and the report says so."""
        try:
            return self.reader.recognises(start) is True
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001 - code of others: a panic of Rust is no Exception
            note(
                f"Reader {self.name} of package {self.package} failed to recognise a file: "
                f"{reason(error)}."
            )
            return False

    def read_headers(self, path: Path) -> Sequence[Header]:
        with self._named(path):
            return [_checked_header(header) for header in self.reader.read_headers(path)]

    def read_traces(self, path: Path) -> Iterable[RankTrace]:
        with self._named(path):
            for trace in self.reader.read_traces(path):
                if not isinstance(trace, RankTrace):
                    raise TypeError(f"a trace must be a RankTrace, got {type(trace).__name__}")
                trace.header = _checked_header(trace.header)
                _check_records(trace)
                refuse_reversed(trace)
                trace.plugin = f"reader {self.name} of package {self.package}"
                yield trace

    @contextmanager
    def _named(self, path: Path) -> Iterator[None]:
        try:
            yield
        except (TraceError, MemoryError, KeyboardInterrupt, GeneratorExit):
            raise
        except BaseException as error:
            who = f"reader {self.name} of package {self.package}"
            raise TraceError(f"{path}: {who} failed: {reason(error)}") from error


def accepted(reader: Any, package: str) -> Reader:
    """Return what a plugin calls a reader, if it is one.

    Raises:
        Exception: it is none, with the reason.
    """
    if not all(map(callable, (reader.recognises, reader.read_headers, reader.read_traces))):
        raise TypeError("recognises, read_headers and read_traces must be methods")
    if not isinstance(reader.name, str) or not isinstance(reader.tells, Facts):
        raise TypeError("its name must be text and what it tells must be Facts")
    order = getattr(reader, "order", 1000)
    if type(order) is not int:
        raise TypeError("its order must be a whole number")
    return PluginReader(reader, package, reader.name, reader.tells, order)


def _checked_header(header: Any) -> Header:
    found = _checked(header, Header)
    if max(found.rank, found.world_size) > LARGEST_WORLD:
        raise ValueError(f"invalid rank {found.rank} for world size {found.world_size}")
    return found


def _check_records(trace: RankTrace) -> None:
    """Check what is read before a trace is analysed."""
    if trace.trailer is not None:
        trace.trailer = _checked(trace.trailer, Trailer)
    if trace.environment is not None:
        trace.environment = _checked(trace.environment, EnvSnapshot)
    trace.engines = {key: _checked(one, EngineConfig) for key, one in trace.engines.items()}


def _checked(record: Any, kind: type[T]) -> T:
    """Return a record as it would be read back from a file."""
    if not isinstance(record, kind):
        raise TypeError(f"{kind.__name__} expected, got {type(record).__name__}")
    return msgspec.convert(msgspec.to_builtins(record), kind)
