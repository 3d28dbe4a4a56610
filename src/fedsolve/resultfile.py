"""result.json as anybody may have written it: read, and checked part by part before anything is made of it."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Callable, Container, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from fedsolve.arrays import is_count
from fedsolve.data.federation import check_name
from fedsolve.errors import CONTROLS, DataError, brief
from fedsolve.metrics.calibration import of_words
from fedsolve.texts import read_json

FORMATS = (1, 2)  # that can be read
_CONTROL = re.compile(f"[{CONTROLS}]")
_LARGEST = 1e100  # of a figure: sums of many still are numbers

Form: TypeAlias = Callable[[Any, str], None]
"""Refuses a value that has another form, by where it stands."""


def digest(content: Mapping[str, Any]) -> str:
    """The digest of a result.json without its times, however it is laid out: runs that agree have the same.

    >>> digest({"rounds": 1, "seconds": 2.0}) == digest({"seconds": 3.0, "rounds": 1})
    True
    """
    told = {name: value for name, value in _timeless(content).items() if name != "digest"}
    lines = [_timeless(line) for line in content.get("history", ())]
    clients = {name: _timeless(entry) for name, entry in content.get("clients", {}).items()}
    told |= {"history": lines} | ({"clients": clients} if "clients" in content else {})
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:32]


def _timeless(entry: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in entry.items() if name != "seconds"}


def read_result(path: Path) -> dict[str, Any]:
    """The content of a result.json; a DataError names the file and the part that is wrong."""
    content = _read(path, _result, formats=FORMATS)
    if content.pop("digest", None) not in (None, digest(content)):  # results of 0.1.0 have none
        raise DataError(
            f"{path} is damaged: its content is not what was written; put a copy in its place, or take its entry "
            '"digest" out if you changed it on purpose'
        )
    return content


def read_failure(path: Path) -> dict[str, Any]:
    """The content of a file that says why there is no result: `method`, `seed` and `reason`."""
    return _read(path, _FAILURE)


def check_groups(groups: Any, clients: Container[str]) -> None:
    """Refuse groups of a result that are not groups of its clients: each in one at most, and none without any.

    >>> check_groups({"0": {"members": ["a"]}, "1": {"members": ["b", "a"]}}, {"a", "b"})
    Traceback (most recent call last):
    fedsolve.errors.DataError: groups, '1', members has 'a', who is in another group or there twice
    """
    _table(_GROUP, _check_group_name)(groups, "groups")
    seen: set[str] = set()
    for name, group in groups.items():
        where = f"groups, {brief(name)}, members"
        for member in group["members"]:
            if member not in clients:
                raise DataError(f"{where} has {brief(member)}, who is no client of the run")
            if member in seen:
                raise DataError(f"{where} has {brief(member)}, who is in another group or there twice")
            seen.add(member)
        if not group["members"]:
            raise DataError(f"{where} must name a client; got none")
    if len({len(group.get("centre", ())) for group in groups.values()}) > 1:
        raise DataError("groups must have centres of one length")


def _read(path: Path, form: Form, formats: tuple[int, ...] = ()) -> dict[str, Any]:
    try:
        content = read_json(path.read_bytes(), str(path))
    except OSError as error:
        raise DataError(f"{path.parent} holds no result: {error.strerror or error}") from error
    if formats and isinstance(content, dict) and "format" in content and content["format"] not in formats:
        raise DataError(
            f"{path.parent} holds a result of format {brief(content['format'])}; this version reads "
            f"{' and '.join(map(str, formats))}: use the version of fedsolve that wrote it"
        )
    try:
        form(content, "it")
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} is damaged: {error}") from error
    return dict(content)


# --- forms ---


def _is(test: Callable[[Any], bool], words: str) -> Form:
    def form(value: Any, where: str) -> None:
        if not test(value):
            raise DataError(f"{where} must be {words}; got {brief(value)}")

    return form


def _number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value) and abs(value) <= _LARGEST


def _text(value: Any) -> bool:
    return isinstance(value, str) and not _CONTROL.search(value)


def _maybe(inner: Form) -> Form:
    """The form, or nothing."""

    def form(value: Any, where: str) -> None:
        if value is not None:
            inner(value, where)

    return form


def _list(inner: Form) -> Form:
    def form(value: Any, where: str) -> None:
        if not isinstance(value, list):
            raise DataError(f"{where} must be a list; got {brief(value)}")
        for number, each in enumerate(value):
            inner(each, f"{where}, entry {number},")

    return form


def _table(inner: Form, check: Callable[[str], None] | None = None) -> Form:
    """Values of one form by name."""

    def form(value: Any, where: str) -> None:
        _by_name(value, where)
        for name, each in value.items():
            (check or _check_text)(name)
            inner(each, f"{where}, {brief(name)},")

    return form


def _check_text(name: str) -> None:
    _TEXT(name, "a name")


def _record(forms: Mapping[str, Form], needed: tuple[str, ...] = ()) -> Form:
    """Values by name, each with a form of its own; what else is there is nobody's concern."""

    def form(value: Any, where: str) -> None:
        _by_name(value, where)
        for name in needed:
            if name not in value:
                raise DataError(f"{where} lacks {name!r}")
        for name, each in value.items():
            if name in forms:
                forms[name](each, name if where == "it" else f"{where} {name}")

    return form


def _by_name(value: Any, where: str) -> None:
    if not isinstance(value, dict):
        raise DataError(f"{where} must be values by name; got {brief(value)}")


def _figures(value: Any, where: str) -> None:
    """Figures by name; format 1 had the accuracy alone, as a plain number."""
    (_table(_NUMBER) if isinstance(value, dict) else _maybe(_NUMBER))(value, where)


def _setting(value: Any, where: str) -> None:
    values = value if isinstance(value, list) else [value]
    if not all(each is None or isinstance(each, bool) or _text(each) or _number(each) for each in values):
        raise DataError(f"{where} must be a number, a text or a list of them; got {brief(value)}")


def _settings(value: Any, where: str) -> None:
    _record({"set": _table(_setting), "seed": _COUNT, "method": _TEXT, "data": _TEXT})(value, where)
    _table(_setting)({name: each for name, each in value.items() if name != "set"}, where)
    if "data" in value and "method" not in value:
        raise DataError(f"{where} say where the data are, and not by which method they were used")


def _counts(value: Any, where: str) -> None:
    """Samples of each class by client: lists of one length."""
    _table(_list(_COUNT), check_name)(value, where)
    if len({len(row) for row in value.values()} | {0}) > 2 or any(not row for row in value.values()):
        raise DataError(f"{where} must have as many classes for every client")


def _means(value: Any, where: str) -> None:
    """Means of the numbers that are predicted, by client: one or more, and as many for each."""
    _table(_list(_NUMBER), check_name)(value, where)
    if len({len(row) for row in value.values()} | {0}) > 2 or any(not row for row in value.values()):
        raise DataError(f"{where} must have as many numbers for every client")


def _check_group_name(name: str) -> None:
    try:
        check_name(name)
    except DataError as error:
        raise DataError(f"a group must have a name that a client could have ({error})") from error


def _result(value: Any, where: str) -> None:
    """Every part by itself, and then groups, which name clients."""
    _RESULT(value, where)
    check_groups(value.get("groups", {}), value.get("clients", {}))


def _times(value: Any, where: str) -> None:
    """The seconds of a client: these three, and no other."""
    _table(_is(lambda seconds: _number(seconds) and seconds >= 0, "a number of seconds"))(value, where)
    if set(value) != {"compute", "waiting", "transfer"}:
        raise DataError(f"{where} must be of compute, waiting and transfer; got {brief(sorted(value))}")


def _calibration(value: Any, where: str) -> None:
    of_words(value)


def _figure(value: Any, where: str) -> None:
    """A figure over clients: its mean, or the mean and others by name."""
    (_table(_maybe(_NUMBER)) if isinstance(value, dict) else _maybe(_NUMBER))(value, where)


_NUMBER = _is(_number, "a number")
_COUNT = _is(is_count, "a whole number from 0 on")
_TEXT = _is(_text, "a text without control characters")
_TEXTS = _list(_TEXT)
_SPREAD = _table(_maybe(_NUMBER))
_CLIENT = _record(
    {
        "train": _COUNT,
        "test": _COUNT,
        "accuracy": _maybe(_NUMBER),
        "metrics": _table(_NUMBER),
        "global": _figures,
        "alone": _figures,
        "constant": _table(_NUMBER),
        "chosen": _table(_NUMBER),
        "seconds": _times,
    }
)
_GROUP = _record({"members": _TEXTS, "centre": _list(_NUMBER)}, needed=("members",))
_ROUND = _record(
    {
        "round": _COUNT,
        "accuracy": _maybe(_NUMBER),
        "bytes_up": _COUNT,
        "bytes_down": _COUNT,
        "seconds": _NUMBER,
        "missing": _TEXTS,
        "loss": _maybe(_NUMBER),
        "metrics": _table(_figure),
    },
    needed=("round",),
)
_RESULT = _record(
    {
        "format": _COUNT,
        "method": _TEXT,
        "settings": _settings,
        "clients": _table(_CLIENT, check_name),
        "accuracy": _SPREAD,
        "metrics": _table(_SPREAD),
        "baseline": _table(_NUMBER),
        "pooled": _table(_table(_NUMBER)),
        "confusion": _list(_list(_COUNT)),
        "calibration": _calibration,
        "privacy": _table(_setting),
        "rounds": _COUNT,
        "bytes": _table(_COUNT),
        "seconds": _table(_NUMBER),
        "history": _list(_ROUND),
        "server": _table(_is(lambda value: isinstance(value, bool) or _number(value), "a number, true or false")),
        "data": _record({"name": _TEXT, "fingerprint": _TEXT, "split": _counts, "means": _means, "skipped": _TEXTS}),
        "task": _record({"kind": _TEXT, "count": _COUNT, "names": _TEXTS}),
    },
    needed=("format", "method", "settings"),
)
_REASON = _is(lambda value: isinstance(value, str), "a text")  # it may have lines
_FAILURE = _record({"method": _TEXT, "seed": _COUNT, "reason": _REASON}, needed=("method", "seed", "reason"))
