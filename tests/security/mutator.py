"""Damaged and hostile variants of valid inputs, each decided by a seed: of bytes, of JSON, and of what holds JSON."""

from __future__ import annotations

import io
import json
import random
import struct
import zipfile
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeAlias

Kind: TypeAlias = Literal["bytes", "json", "safetensors", "npz", "text"]
MARK = "\u2603"  # around the number of a raw literal, which json.dumps could not write

VALUES: tuple[Any, ...] = (
    None, True, False, -1, 0, 1, 2, 3, 255, 2**16, 2**31, 2**32, 2**53, 2**63 - 1, 2**63, 2**64, -(2**63), 10**30,
    10**290, 1e308, 5e-324, -0.0, 0.5, 1.0, -1.5, 1e16, "", "a", "0", "1", "nan", "inf", "1_0", "007", "\u0663",
    "x" * 1000, "\x1b[31m", "a\nb", "\u202e", "\ud800", "../../x", "/etc/passwd", "__metadata__", "global", ".", "auto",
    "local", "identity", "random:3,relu,1", "random:99999999999,relu,1", "F64", "<f8", "O", "[]", "{}", "null", [], {},
    [[]], [{}], [0], [-1], [1, 2], ["a", 3_000_000_000], [0] * 100, [2**40, 2**40], {"a": 1}, {"accuracy": None},
    {"mean": "a"}, [None], [True], ["a"], [2**62] * 3,
)  # fmt: skip
LITERALS = (
    "NaN", "-Infinity", "1e999", "-1e999", "9" * 400, "9" * 5000, "[" * 2000 + "]" * 2000,
    '{"a":' * 2000 + "1" + "}" * 2000,
    '{"a":1,"a":2}', "1.0e-400", "-0", "tru", "'a'",
)  # fmt: skip
INTEGERS = (
    b"0",
    b"-1",
    b"1",
    b"2147483648",
    b"9223372036854775807",
    b"18446744073709551616",
    b"9" * 40,
    b"1e30",
    b"1_0",
)
WORDS = (0, 1, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 2**63 - 1, 2**63, 2**64 - 1)


def mutate(data: bytes, kind: Kind, others: Sequence[bytes], rng: random.Random) -> bytes:
    """A variant of `data`; `others` are inputs of the same kind that it may be spliced with."""
    form = STRUCTURED.get(kind)
    if form is not None and rng.random() < 0.6:
        data = form(data, rng)
        if rng.random() < 0.8:
            return data
    for _ in range(rng.choice((1, 1, 1, 2, 3, 8))):
        data = rng.choice(BLIND)(data, others, rng)
    return data


# --- bytes, whatever they mean ---


def _place(data: bytes, rng: random.Random) -> int:
    """A place in the data; more often near its start, where headers are."""
    end = len(data) if rng.random() < 0.5 else min(len(data), 200)
    return rng.randrange(end) if end else 0


def _flip(data: bytes, others: Sequence[bytes], rng: random.Random) -> bytes:
    at = _place(data, rng)
    return data[:at] + bytes(byte ^ (1 << rng.randrange(8)) for byte in data[at : at + 1]) + data[at + 1 :]


def _byte(data: bytes, others: Sequence[bytes], rng: random.Random) -> bytes:
    at = _place(data, rng)
    return (
        data[:at]
        + bytes([rng.choice((0, 1, 9, 10, 34, 44, 91, 93, 123, 125, 127, 128, 255, rng.randrange(256)))])
        + data[at + 1 :]
    )


def _insert(data: bytes, others: Sequence[bytes], rng: random.Random) -> bytes:
    at = _place(data, rng)
    return data[:at] + rng.randbytes(rng.choice((1, 2, 8, 64))) + data[at:]


def _delete(data: bytes, others: Sequence[bytes], rng: random.Random) -> bytes:
    at = _place(data, rng)
    return data[:at] + data[at + rng.choice((1, 2, 8, 64)) :]


def _duplicate(data: bytes, others: Sequence[bytes], rng: random.Random) -> bytes:
    at, length = _place(data, rng), rng.choice((1, 4, 16, 200))
    return data[: at + length] + data[at : at + length] * rng.choice((1, 1, 3)) + data[at + length :]


def _splice(data: bytes, others: Sequence[bytes], rng: random.Random) -> bytes:
    other = rng.choice(others) if others else data
    return data[: _place(data, rng)] + other[_place(other, rng) :]


def _truncate(data: bytes, others: Sequence[bytes], rng: random.Random) -> bytes:
    return data[: _place(data, rng)]


def _word(data: bytes, others: Sequence[bytes], rng: random.Random) -> bytes:
    """An extreme integer in place of 1, 2, 4 or 8 bytes."""
    at, size = _place(data, rng), rng.choice((1, 2, 4, 8))
    word = (rng.choice(WORDS) % (1 << 8 * size)).to_bytes(size, rng.choice(("little", "big")))
    return data[:at] + word + data[at + size :]


def _digits(data: bytes, others: Sequence[bytes], rng: random.Random) -> bytes:
    """An extreme integer in place of one that is written in digits."""
    starts = [
        at for at in range(min(len(data), 4000)) if 48 <= data[at] <= 57 and not (at and 48 <= data[at - 1] <= 57)
    ]
    if not starts:
        return _flip(data, others, rng)
    start = rng.choice(starts)
    end = start
    while end < len(data) and 48 <= data[end] <= 57:
        end += 1
    return data[:start] + rng.choice(INTEGERS) + data[end:]


BLIND: tuple[Callable[[bytes, Sequence[bytes], random.Random], bytes], ...] = (
    _flip, _flip, _byte, _insert, _delete, _duplicate, _splice, _truncate, _word, _digits, _digits,
)  # fmt: skip


# --- JSON ---


def hostile_json(text: str, rng: random.Random) -> str:
    """The same JSON with a few values replaced, dropped, renamed or doubled; also inside texts that are JSON."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        value = _changed(value, rng)
    text = json.dumps(value)
    for number, literal in enumerate(LITERALS):
        text = text.replace(json.dumps(f"{MARK}{number}{MARK}"), literal)
    return text


def _hostile(rng: random.Random) -> Any:
    return f"{MARK}{rng.randrange(len(LITERALS))}{MARK}" if rng.random() < 0.2 else rng.choice(VALUES)


def _changed(value: Any, rng: random.Random) -> Any:
    """The value with a change somewhere below it."""
    if isinstance(value, str) and value[:1] in ("{", "[") and rng.random() < 0.8:
        return hostile_json(value, rng)
    if not isinstance(value, (dict, list)) or not value or rng.random() < 0.15:
        return _hostile(rng)
    if isinstance(value, list):
        at = rng.randrange(len(value))
        way = rng.random()
        if way < 0.1:
            return value[:at] + value[at + 1 :]
        if way < 0.2:
            return [*value, _hostile(rng)]
        return [*value[:at], _changed(value[at], rng), *value[at + 1 :]]
    name = rng.choice(list(value))
    way = rng.random()
    if way < 0.08:
        return {other: each for other, each in value.items() if other != name}
    if way < 0.14:
        return {**value, str(rng.choice(VALUES)): _hostile(rng)}
    if way < 0.2:
        return {(str(rng.choice(VALUES)) if other == name else other): each for other, each in value.items()}
    return {**value, name: _changed(value[name], rng)}


def _json(data: bytes, rng: random.Random) -> bytes:
    return hostile_json(data.decode(), rng).encode("utf-8", "surrogatepass")


# --- what holds JSON or headers ---


def _safetensors(data: bytes, rng: random.Random) -> bytes:
    """A valid frame around a hostile header; sometimes the values are hostile numbers instead."""
    length = int.from_bytes(data[:8], "little")
    text, values = data[8 : 8 + length].decode(), data[8 + length :]
    if rng.random() < 0.25:
        at = 8 * rng.randrange(max(1, len(values) // 8))
        number = rng.choice((float("nan"), float("inf"), 1.7e308, -1e300, 5e-324, -1.0, 1e15))
        word = struct.pack("<d", number) if rng.random() < 0.6 else (rng.choice(WORDS) % 2**64).to_bytes(8, "little")
        values = values[:at] + word + values[at + 8 :]
    else:
        text = hostile_json(text, rng)
    header = text.encode("utf-8", "surrogatepass")
    return len(header).to_bytes(8, "little") + header + values


def _npz(data: bytes, rng: random.Random) -> bytes:
    """A zip file whose members are damaged before they are packed, so that checksums are right."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    name = rng.choice(list(members))
    head, _, values = members[name].partition(b"\n")
    old = (b"(", b"<f8", b"<i8", b"<U", b"False", b"shape", b"descr", b", ", b"'", b"}")
    new = (
        b"(9999999999, ", b"(-1, ", b"(" * 200, b"(True, ", b"('a', ", b"(0, 4611686018427387904, ", b"|O", b"<U0",
        b"<U9999999", b">f8", b"<f2", b"[('a', '<f8')]", b"<M8[s]", b"True", b"9" * 5000, b"\\ud800", b"{",
        b"", b"#", b"\xff",
    )  # fmt: skip
    head = head.replace(rng.choice(old), rng.choice(new), 1)
    if rng.random() < 0.7:
        head = head[:8] + (max(0, len(head) + 1 - 10) % 2**16).to_bytes(2, "little") + head[10:]
    members[name] = head + b"\n" + (values if rng.random() < 0.7 else rng.choice(BLIND)(values, (), rng))
    if rng.random() < 0.1:
        members[rng.choice(("x.npy", "y.npy", "client.npy"))] = bytes(rng.choice((0, 100, 100_000)))
    buffer = io.BytesIO()
    method = rng.choice(
        (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA)
    )
    with zipfile.ZipFile(buffer, "w", method) as archive:
        for member, content in members.items():
            archive.writestr(member, content)
    return buffer.getvalue()


STRUCTURED: dict[Kind, Callable[[bytes, random.Random], bytes]]
STRUCTURED = {"json": _json, "safetensors": _safetensors, "npz": _npz}
