"""The few opcodes of Python's pickle format that dictionaries of byte arrays need; nothing that a file names is run.

The official CIFAR archives for Python were written by Python 2, protocol 2: a dictionary with lists of integers, texts
and one array of NumPy. A name in such a file means what is written here, or the file is refused: nothing is imported
and nothing is called. What comes out is never much larger than the file, since values that a file mentions twice are
there once.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fedsolve.arrays import sides
from fedsolve.errors import DataError, brief, plain

_NEWEST = 2  # protocol
_ESCAPE = re.compile(rb"\\(x[0-9a-fA-F]{2}|.|$)", re.DOTALL)
_ESCAPED = {b"\\": b"\\", b"'": b"'", b'"': b'"', b"n": b"\n", b"r": b"\r", b"t": b"\t"}
_NAMES = {  # what a file may name, and what that means here
    "numpy.core.multiarray _reconstruct": "an array",
    "numpy._core.multiarray _reconstruct": "an array",
    "numpy ndarray": "its class",
    "numpy dtype": "its type",
    "_codecs encode": "bytes",  # as Python 3 writes them for Python 2
}
_LONGEST_NUMBER = 20  # characters: 64 bits and a sign


@dataclass(frozen=True)
class _Name:
    """One of `_NAMES`."""

    meaning: str


@dataclass
class _Array:
    """An array of bytes; files name it before they say what is in it."""

    values: np.ndarray[Any, np.dtype[np.uint8]] | None = None


class _Bytes:
    """The type of such an array: one byte, from 0 to 255."""


def read_pickle(data: bytes, source: str) -> dict[str, Any]:
    r"""The dictionary in a pickle: its lists, integers, texts as bytes or str, and arrays of bytes.

    >>> read_pickle(b"(dS'labels'\n(lI3\naI7\nas.", "data_batch_1")
    {'labels': [3, 7]}
    >>> read_pickle(b"cos\nsystem\n(S'reboot'\ntR.", "data_batch_1")
    Traceback (most recent call last):
    fedsolve.errors.DataError: data_batch_1 is damaged or no pickle of CIFAR: it names 'os system', which is never run
    """
    try:
        value = _Reader(data).read()
        if not isinstance(value, dict):
            raise ValueError(f"it must hold a dictionary; got {brief(value)}")
        return {_text(key): each.values if isinstance(each, _Array) else each for key, each in value.items()}
    except (ValueError, IndexError, KeyError, TypeError, OverflowError, struct.error, MemoryError) as error:
        reason = plain(str(error)) if isinstance(error, ValueError) else "it is cut off or its parts do not fit"
        raise DataError(f"{source} is damaged or no pickle of CIFAR: {reason}") from error


def _text(key: object) -> str:
    if isinstance(key, bytes):
        return key.decode("latin-1")
    if isinstance(key, str):
        return key
    raise ValueError(f"its keys must be texts; got {brief(key)}")


@dataclass
class _Reader:
    """A machine with a stack, as the format wants it, over the bytes of one file."""

    data: bytes
    place: int = 0
    stack: list[Any] = field(default_factory=list)
    marks: list[int] = field(default_factory=list)
    memo: dict[int, Any] = field(default_factory=dict)
    encoded: int = 0  # characters that were made bytes

    def read(self) -> Any:
        """The value of the file."""
        while True:
            opcode = self._take(1)
            if opcode == b".":
                return self._pop()
            step = _STEPS.get(opcode)
            if step is None:
                raise ValueError(f"it has the opcode {opcode!r}, which such files do not need")
            step(self)

    # --- the bytes ---

    def _take(self, count: int) -> bytes:
        part = self.data[self.place : self.place + count]
        if count < 0 or len(part) < count:
            raise ValueError(f"it announces {count} bytes at {self.place} and holds {len(self.data) - self.place}")
        self.place += count
        return part

    def _line(self) -> bytes:
        end = self.data.find(b"\n", self.place)
        if end < 0:
            raise ValueError("it is cut off within a line")
        line, self.place = self.data[self.place : end], end + 1
        return line

    def _number(self, form: str) -> int:
        (number,) = struct.unpack(form, self._take(struct.calcsize(form)))
        return int(number)

    def _decimal(self) -> int:
        line = self._line().removesuffix(b"L")
        if len(line) > _LONGEST_NUMBER:
            raise ValueError(f"it has an integer of {len(line)} digits")
        return int(line)

    # --- the stack ---

    def _pop(self) -> Any:
        if len(self.stack) <= (self.marks[-1] if self.marks else 0):
            raise ValueError("it takes a value that is not there")
        return self.stack.pop()

    def _marked(self) -> list[Any]:
        """What was pushed since the last mark."""
        if not self.marks:
            raise ValueError("it has no mark where it needs one")
        start = self.marks.pop()
        values = self.stack[start:]
        del self.stack[start:]
        return values

    def _several(self, count: int) -> tuple[Any, ...]:
        values = [self._pop() for _ in range(count)]
        return tuple(reversed(values))

    def push(self, value: Any) -> None:
        """Put a value on the stack."""
        self.stack.append(value)

    # --- what opcodes do ---

    def protocol(self) -> None:
        """Refuse protocols that Python 2 did not have."""
        number = self._number("B")
        if number > _NEWEST:
            raise ValueError(f"it has protocol {number}; the official files have {_NEWEST} or less")

    def mark(self) -> None:
        """Remember this place of the stack."""
        self.marks.append(len(self.stack))

    def quoted(self) -> None:
        """A text as Python 2 shows it, in quotes and with escapes."""
        line = self._line().strip()
        if len(line) < 2 or line[:1] not in (b"'", b'"') or line[-1:] != line[:1]:
            raise ValueError("it has a text without quotes")
        self.push(_ESCAPE.sub(_unescaped, line[1:-1]))

    def integer(self) -> None:
        """A decimal number; 00 and 01 are false and true."""
        line = self.data[self.place : self.place + 3]
        if line in (b"00\n", b"01\n"):
            self.place += 3
            self.push(line == b"01\n")
        else:
            self.push(self._decimal())

    def extend(self) -> None:
        """Put what was marked at the end of the list below it."""
        values = self._marked()
        self._top(list).extend(values)

    def append(self) -> None:
        """Put one value at the end of the list below it."""
        value = self._pop()
        self._top(list).append(value)

    def fill(self, values: list[Any]) -> None:
        """Put pairs of keys and values into the dictionary below them."""
        self._top(dict).update(_pairs(values))

    def _top(self, kind: type) -> Any:
        value = self._pop()
        if type(value) is not kind:
            raise ValueError(f"it puts values into {brief(value)}")
        self.push(value)
        return value

    def remember(self, key: int) -> None:
        """Keep the value on top under a number."""
        value = self._pop()
        self.push(value)
        self.memo[key] = value

    def recall(self, key: int) -> None:
        """Push what was kept under a number: the same value, no copy of it."""
        if key not in self.memo:
            raise ValueError(f"it refers to a value {key} that is not there")
        self.push(self.memo[key])

    def name(self) -> None:
        """A name of a module: one of those that mean something here."""
        words = f"{self._line().decode('latin-1')} {self._line().decode('latin-1')}"
        if words not in _NAMES:
            raise ValueError(f"it names {plain(words, 80)!r}, which is never run")
        self.push(_Name(_NAMES[words]))

    def make(self) -> None:
        """What a name and its arguments stand for."""
        arguments, name = self._pop(), self._pop()
        if not isinstance(name, _Name) or type(arguments) is not tuple:
            raise ValueError(f"it calls {brief(name)}, which is no name")
        if name.meaning == "an array" and arguments[:1] == (_Name("its class"),):
            self.push(_Array())
        elif name.meaning == "its type" and arguments and arguments[0] in (b"u1", "u1"):
            self.push(_Bytes())
        elif name.meaning == "bytes" and len(arguments) == 2 and type(arguments[0]) is str:
            self.encoded += len(arguments[0])
            if self.encoded > len(self.data):
                raise ValueError("it makes bytes of more characters than it has")
            self.push(arguments[0].encode("latin-1"))
        else:
            raise ValueError(f"it must hold arrays of bytes; got {name.meaning} of {brief(arguments)}")

    def build(self) -> None:
        """Say what an array holds: version, shape, type, whether its columns come first, and its bytes."""
        state, made = self._pop(), self._pop()
        self.push(made)
        if isinstance(made, _Bytes) and type(state) is tuple:
            return  # byte order and alignment, of which single bytes have none
        if not isinstance(made, _Array) or type(state) is not tuple or len(state) not in (4, 5):
            raise ValueError(f"it must say what an array holds; got {brief(state)}")
        shape, kind, fortran, content = state[-4:]
        lengths = sides(shape, "an array")
        if not isinstance(kind, _Bytes) or not isinstance(content, bytes) or not isinstance(fortran, int):
            raise ValueError("it must hold arrays of bytes")
        if math.prod(lengths) != len(content):
            raise ValueError(f"an array announces {math.prod(lengths)} bytes and has {len(content)}")
        made.values = np.frombuffer(content, np.uint8).reshape(lengths, order="F" if fortran else "C")


def _unescaped(found: re.Match[bytes]) -> bytes:
    escape = found[1]
    if escape[:1] == b"x" and len(escape) == 3:
        return bytes([int(escape[1:], 16)])
    if escape not in _ESCAPED:
        raise ValueError(f"it has a text with the escape {found[0]!r}")
    return _ESCAPED[escape]


def _pairs(values: list[Any]) -> dict[Any, Any]:
    for key in values[::2]:
        if type(key) not in (bytes, str, int):
            raise ValueError(f"it has the key {brief(key)}")
    return dict(zip(values[::2], values[1::2], strict=True))


_STEPS: dict[bytes, Callable[[_Reader], None]] = {
    b"\x80": _Reader.protocol,
    b"(": _Reader.mark,
    b"N": lambda machine: machine.push(None),
    b"\x88": lambda machine: machine.push(True),
    b"\x89": lambda machine: machine.push(False),
    b"I": _Reader.integer,
    b"L": lambda machine: machine.push(machine._decimal()),
    b"J": lambda machine: machine.push(machine._number("<i")),
    b"K": lambda machine: machine.push(machine._number("<B")),
    b"M": lambda machine: machine.push(machine._number("<H")),
    b"\x8a": lambda machine: machine.push(int.from_bytes(machine._take(machine._number("B")), "little", signed=True)),
    b"S": _Reader.quoted,
    b"T": lambda machine: machine.push(machine._take(machine._number("<i"))),
    b"U": lambda machine: machine.push(machine._take(machine._number("<B"))),
    b"V": lambda machine: machine.push(machine._line().decode("raw-unicode-escape")),
    b"X": lambda machine: machine.push(machine._take(machine._number("<I")).decode()),
    b"}": lambda machine: machine.push({}),
    b"d": lambda machine: machine.push(_pairs(machine._marked())),
    b"s": lambda machine: machine.fill(list(machine._several(2))),
    b"u": lambda machine: machine.fill(machine._marked()),
    b"]": lambda machine: machine.push([]),
    b"l": lambda machine: machine.push(machine._marked()),
    b"a": _Reader.append,
    b"e": _Reader.extend,
    b")": lambda machine: machine.push(()),
    b"t": lambda machine: machine.push(tuple(machine._marked())),
    b"\x85": lambda machine: machine.push(machine._several(1)),
    b"\x86": lambda machine: machine.push(machine._several(2)),
    b"\x87": lambda machine: machine.push(machine._several(3)),
    b"p": lambda machine: machine.remember(machine._decimal()),
    b"q": lambda machine: machine.remember(machine._number("<B")),
    b"r": lambda machine: machine.remember(machine._number("<I")),
    b"g": lambda machine: machine.recall(machine._decimal()),
    b"h": lambda machine: machine.recall(machine._number("<B")),
    b"j": lambda machine: machine.recall(machine._number("<I")),
    b"c": _Reader.name,
    b"R": _Reader.make,
    b"b": _Reader.build,
}  # fmt: skip
