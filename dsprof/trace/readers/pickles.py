"""Reads pickles of plain data: dicts, lists, tuples, strings, numbers, and nothing that runs.

Python's own unpickler calls what a file names, and one small opcode makes it reserve gigabytes for
its memo. This one knows no opcode that imports, calls or builds an object, and counts what it
makes. Opcodes: `pickletools` of the standard library.
"""

from __future__ import annotations

import pickle
import struct
from typing import Any

from dsprof.errors import TraceError

_MOST_CONTAINERS = 8_000_000
_LONGEST_INT_BYTES = 16
_LARGEST_KEY = 1 << 32  # larger ints may be chosen so that all of them collide in a dict

_RUNNING = {
    getattr(pickle, name)[0]
    for name in ("GLOBAL", "STACK_GLOBAL", "REDUCE", "BUILD", "INST", "OBJ", "NEWOBJ", "NEWOBJ_EX")
    + ("EXT1", "EXT2", "EXT4", "PERSID", "BINPERSID")
}
_LENGTHS = {  # of text: how long the length before it is
    pickle.SHORT_BINUNICODE[0]: 1,
    pickle.BINUNICODE[0]: 4,
    pickle.BINUNICODE8[0]: 8,
    pickle.SHORT_BINSTRING[0]: 1,
    pickle.BINSTRING[0]: 4,
}
_BYTES = {pickle.SHORT_BINBYTES[0]: 1, pickle.BINBYTES[0]: 4}
_NUMBERS = {pickle.BININT[0]: 4, pickle.BININT1[0]: 1, pickle.BININT2[0]: 2}
_SIGNED = pickle.BININT[0]
_CONSTANTS = {pickle.NONE[0]: None, pickle.NEWTRUE[0]: True, pickle.NEWFALSE[0]: False}
_TUPLES = {pickle.TUPLE1[0]: 1, pickle.TUPLE2[0]: 2, pickle.TUPLE3[0]: 3}
_SKIPPED = {pickle.PROTO[0]: 1, pickle.FRAME[0]: 8}
_MEMO = {pickle.BINPUT[0]: 1, pickle.LONG_BINPUT[0]: 4}
_RECALL = {pickle.BINGET[0]: 1, pickle.LONG_BINGET[0]: 4}


def load_plain(data: bytes, where: str, most_parts: int = _MOST_CONTAINERS) -> Any:
    """Return what a pickle of plain data holds; an opcode makes, names or repeats one part.

    Raises:
        TraceError: it is cut or damaged, holds more than plain data, or too much of it.
    """
    try:
        return _Machine(data, most_parts).run()
    except _RefusedError as refusal:
        raise TraceError(f"{where}: {refusal}") from None
    except (IndexError, KeyError, ValueError, TypeError, struct.error):
        raise TraceError(f"{where}: a pickle that is cut or damaged") from None


class _RefusedError(Exception):
    """The file may be whole, but is not read."""


class _Machine:
    """Runs the opcodes of one pickle; whatever is wrong with it ends in one of a few errors."""

    def __init__(self, data: bytes, most_parts: int) -> None:
        self._data = data
        self._left = most_parts
        self._stack: list[Any] = []
        self._marks: list[int] = []
        self._memo: dict[int, Any] = {}
        self._at = 0
        self._containers = 0

    def run(self) -> Any:
        """Run until the opcode that ends a pickle.

        What a cut file lacks reads as too short, and the next opcode is then beyond its end.
        """
        data, stack, memo = self._data, self._stack, self._memo
        at, left = 0, self._left
        while (op := data[at]) != _STOP:
            at += 1
            left -= 1
            if left < 0:
                raise _RefusedError("too many objects for a file of this size, so it is not read")
            if size := _RECALL.get(op):
                stack.append(memo[int.from_bytes(data[at : at + size], "little")])
                at += size
            elif op == _MEMOIZE:
                memo[len(memo)] = stack[-1]
            elif size := _NUMBERS.get(op):
                signed = op == _SIGNED
                stack.append(int.from_bytes(data[at : at + size], "little", signed=signed))
                at += size
            elif size := _LENGTHS.get(op):
                start = at + size
                at = start + int.from_bytes(data[at:start], "little")
                stack.append(str(data[start:at], "utf-8", "replace"))
            elif size := _MEMO.get(op):
                memo[int.from_bytes(data[at : at + size], "little")] = stack[-1]
                at += size
            else:
                self._at = at
                self._rare(op)
                at = self._at
        return stack[-1]

    def _rare(self, op: int) -> None:
        """Run one of the opcodes that are fewer in a file."""
        stack = self._stack
        if op in _CONSTANTS:
            stack.append(_CONSTANTS[op])
        elif op in _SKIPPED:
            self._at += _SKIPPED[op]
        elif op == _LONG:
            if (size := self._number(1)) > _LONGEST_INT_BYTES:
                raise _RefusedError(
                    f"a pickle with a number of {size} bytes, which no such file holds"
                )
            stack.append(self._number(size, signed=True))
        elif op in _BYTES:
            stack.append(self._take(self._number(_BYTES[op])))
        elif op == _FLOAT:
            stack.append(struct.unpack(">d", self._take(8))[0])
        else:
            self._container(op)

    def _container(self, op: int) -> None:
        """Begin, fill or end a dict, list or tuple."""
        stack = self._stack
        self._containers += 1
        if self._containers > _MOST_CONTAINERS:
            raise _RefusedError(f"a pickle of more than {_MOST_CONTAINERS:,} parts is not read")
        if op == _MARK:
            self._marks.append(len(stack))
        elif op in _EMPTY:
            stack.append(_EMPTY[op]())
        elif op in _TUPLES:
            count = _TUPLES[op]
            stack[-count:] = [tuple(stack[len(stack) - count :])]
        elif op == _TUPLE:
            stack.append(tuple(self._since_mark()))
        elif op in (_APPEND, _APPENDS):
            items = self._since_mark() if op == _APPENDS else [stack.pop()]
            self._top(list).extend(items)
        elif op in (_SETITEM, _SETITEMS):
            items = self._since_mark() if op == _SETITEMS else [stack.pop(-2), stack.pop()]
            keys = items[::2]
            if set(map(type, keys)) != {str}:
                keys = [_key(key) for key in keys]
            self._top(dict).update(zip(keys, items[1::2], strict=True))
        elif op in _RUNNING:
            raise _RefusedError(
                "a pickle that would import a class or call a function; only plain data is read"
            )
        else:
            raise ValueError(op)

    def _top(self, kind: type) -> Any:
        if type(self._stack[-1]) is not kind:
            raise TypeError(kind)
        return self._stack[-1]

    def _since_mark(self) -> list[Any]:
        mark = self._marks.pop()
        items = self._stack[mark:]
        del self._stack[mark:]
        return items

    def _take(self, size: int) -> bytes:
        taken = self._data[self._at : self._at + size]
        if len(taken) < size:
            raise IndexError(size)
        self._at += size
        return taken

    def _number(self, size: int, *, signed: bool = False) -> int:
        return int.from_bytes(self._take(size), "little", signed=signed)


def _key(key: Any) -> str | int:
    if type(key) is str or (type(key) is int and abs(key) < _LARGEST_KEY):
        return key
    raise _RefusedError("a pickle with a key that is neither text nor a small number is not read")


_STOP, _MEMOIZE, _MARK = pickle.STOP[0], pickle.MEMOIZE[0], pickle.MARK[0]
_LONG, _FLOAT, _TUPLE = pickle.LONG1[0], pickle.BINFLOAT[0], pickle.TUPLE[0]
_APPEND, _APPENDS = pickle.APPEND[0], pickle.APPENDS[0]
_SETITEM, _SETITEMS = pickle.SETITEM[0], pickle.SETITEMS[0]
_EMPTY = {pickle.EMPTY_DICT[0]: dict, pickle.EMPTY_LIST[0]: list, pickle.EMPTY_TUPLE[0]: tuple}
