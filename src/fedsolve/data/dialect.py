"""How a text file of rows is written: its encoding, what separates cells, and whether numbers have a decimal comma."""

from __future__ import annotations

import codecs
import csv
import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from fedsolve.errors import DataError, ParameterError, plain

SEPARATORS = (",", ";", "\t")
SAMPLE = 2**15  # characters that are looked at
_MARKS = ((codecs.BOM_UTF8, "utf-8-sig"), (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"))
_COMMA = re.compile(r"\s*[-+]?\d*,\d+\s*(?:[eE][-+]?\d+\s*)?")
_POINT = re.compile(r"\s*[-+]?\d*\.\d+\s*(?:[eE][-+]?\d+\s*)?")


@dataclass(frozen=True, slots=True)
class Dialect:
    """What separates cells, and whether numbers are written 12,5."""

    separator: str = ","
    comma: bool = False


@contextmanager
def opened(path: Path, encoding: str = "") -> Iterator[TextIO]:
    """The text of a file: in UTF-8, in UTF-16 where it begins with its mark, or in the encoding that is named.

    What cannot be read as text is refused with the first byte that is none, its line, and what to do.
    """
    if encoding:
        try:
            codecs.lookup(encoding)
            b"".decode(encoding)
        except (LookupError, ValueError, UnicodeError):
            raise ParameterError(
                f"unknown encoding {plain(encoding, 40)!r}; name one that Python knows, as in --encoding latin-1"
            ) from None
    name = encoding or marked(path)
    try:
        with path.open(newline="", encoding=name) as file:
            yield file
    except UnicodeError as error:
        raise DataError(_undecodable(path, name, error)) from error
    except csv.Error as error:
        raise DataError(f"{path} is not a CSV file ({plain(str(error))})") from error


def marked(path: Path) -> str:
    """The encoding that the first bytes of a file say; UTF-8 where they say nothing."""
    with path.open("rb") as file:
        start = file.read(3)
    return next((name for mark, name in _MARKS if start.startswith(mark)), "utf-8")


def _undecodable(path: Path, encoding: str, error: UnicodeError) -> str:
    if encoding not in ("utf-8", "utf-8-sig"):
        return f"{path} is not text in {encoding} ({plain(str(error), 200)}); name another with --encoding"
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            try:
                line.decode()
            except UnicodeDecodeError as bad:
                return (
                    f"{path} is not text in UTF-8: byte 0x{line[bad.start]:02x} in line {number}; say how it is "
                    "encoded, as in --encoding latin-1 (older programs) or --encoding utf-16, or save it as UTF-8"
                )
    return f"{path} is not text in UTF-8 ({plain(str(error), 200)}); say how it is encoded with --encoding"


def found(sample: str) -> Dialect:
    r"""The dialect of a file that begins so.

    >>> found("age;bmi\n61;22,5\n"), found("age,bmi\n61,22.5\n")
    (Dialect(separator=';', comma=True), Dialect(separator=',', comma=False))
    """
    lines = sample.split("\n")
    whole = "\n".join(lines[:-1]) if len(sample) >= SAMPLE and len(lines) > 1 else sample  # the last may be cut off
    best, rows = (-1.0, 0), list[list[str]]()
    separator = SEPARATORS[0]
    for candidate in SEPARATORS:
        try:
            table = [row for row in csv.reader(io.StringIO(whole, newline=""), delimiter=candidate) if row]
        except csv.Error:
            continue
        width = len(table[0]) if table else 0
        if width < 2:
            continue
        alike = sum(len(row) == width for row in table) / len(table)
        if (alike, width) > best:
            best, separator, rows = (alike, width), candidate, table
    if separator == ",":
        return Dialect(separator)
    cells = [cell for row in rows[1:] for cell in row]
    commas, points = (sum(1 for cell in cells if form.fullmatch(cell)) for form in (_COMMA, _POINT))
    return Dialect(separator, commas > points)
