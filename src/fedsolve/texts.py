"""JSON, and lines NAME=VALUE, that anybody may have written: read strictly, and refused with one kind of error."""

from __future__ import annotations

import json
import math
import shlex
from collections import Counter
from pathlib import Path
from typing import Any, NoReturn

from fedsolve.errors import DataError, brief, plain

_DIGITS = 300  # of an integer: so many still fit into a float


def read_json(text: str | bytes, source: str) -> Any:
    """The value in a JSON text; `source` names it in errors.

    Refused beside what is no JSON: names that stand twice in one object, NaN and infinities, integers of hundreds of
    digits, halves of characters, and brackets nested deeper than Python follows.

    >>> read_json('{"clients": 5}', "c.json")
    {'clients': 5}
    >>> read_json('{"clients": 5, "clients": 6}', "c.json")
    Traceback (most recent call last):
    fedsolve.errors.DataError: c.json is damaged or not JSON: 'clients' stands twice in one object
    """
    if not isinstance(text, (str, bytes)):
        raise DataError(f"{source} must be a text; got {brief(text)}")
    try:
        words = text if isinstance(text, str) else text.decode()
        value = _DECODER.decode(words)
        if "\\u" in words:  # the only way to a half of a surrogate pair, which no file and no terminal takes
            json.dumps(value, ensure_ascii=False).encode()
        return value
    except RecursionError:
        raise DataError(f"{source} is damaged or not JSON: its brackets are nested too deeply") from None
    except UnicodeError:
        raise DataError(f"{source} is damaged or not JSON: it is not text in UTF-8") from None
    except (ValueError, MemoryError) as error:
        raise DataError(f"{source} is damaged or not JSON: {plain(str(error)) or type(error).__name__}") from error


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) != len(pairs):
        twice = Counter(name for name, _ in pairs).most_common(1)[0][0]
        raise ValueError(f"{brief(twice)} stands twice in one object")
    return values


def _integer(digits: str) -> int:
    if len(digits) > _DIGITS:
        raise ValueError(f"an integer of {len(digits)} digits")
    return int(digits)


def _number(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise ValueError(f"{brief(digits)} is no finite number")
    return value


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no finite number")


_DECODER = json.JSONDecoder(
    object_pairs_hook=_unique, parse_int=_integer, parse_float=_number, parse_constant=_no_constant
)


def read_env(path: Path) -> dict[str, str]:
    """The settings in a file of lines NAME=VALUE."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from error
    except UnicodeError as error:
        raise DataError(f"{path} is not a text in UTF-8, with lines NAME=VALUE") from error
    settings = {}
    for line in text.splitlines():
        name, equals, value = line.partition("=")
        if equals and not line.lstrip().startswith("#"):
            try:
                settings[name.strip()] = "".join(shlex.split(value))
            except ValueError as error:
                raise DataError(f"{path}: the value of {plain(name, 40)} has an open quote: {error}") from error
    return settings
