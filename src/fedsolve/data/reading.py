"""What a user says of a table, which column is what, and everything that is wrong with it, told at once."""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from fedsolve.errors import CONTROLS, DataError, ParameterError, brief, plain

AUTO, NUMBERS, TEXTS, CLASSES = "auto", "numbers", "texts", "classes"
DAYS = "days"
COLUMNS = "columns"  # the feature map that takes a table as it is
LONGEST_TEXT = 200  # characters of a name, a label, a client
MOST_FAULTS = 20  # that one message names
_LABELS = ("y", "label")
_CLIENT = "client"
_CONTROL = re.compile(f"[{CONTROLS}]")


@dataclass(frozen=True, slots=True)
class Reading:
    """How a table is read: which column is what, and what its columns and its labels are.

    >>> Reading(label=("disease",), client="hospital", drop=("id",)).columns
    'auto'
    """

    label: tuple[str, ...] = ()  # () stands for y or label
    client: str = ""  # "" stands for client, where there is such a column
    person: str = ""
    drop: tuple[str, ...] = ()
    task: str = AUTO
    columns: str = AUTO
    date_as: str = ""
    encoding: str = ""
    varied: bool = False  # whether labels must differ, or may be those of a site that has one class
    kinds: Mapping[str, str] = field(default_factory=dict)  # of a model's columns: "numbers" or "texts"

    @classmethod
    def of(cls, config: Mapping[str, object]) -> Reading:
        """From texts under the names of the fields, as a site's settings have them; what is missing is as by default.

        >>> Reading.of({"label": "disease", "drop": "id, name"}).drop
        ('id', 'name')
        """
        texts = {name: str(value).strip() for name, value in config.items()}
        return cls(
            label=names_in(texts.get("label", "")),
            drop=names_in(texts.get("drop", "")),
            person=texts.get("person", ""),
            task=texts.get("task") or AUTO,
            date_as=texts.get("date_as", ""),
            encoding=texts.get("encoding", ""),
        )

    def for_features(self, features: str) -> Reading:
        """The same, for data of which these features are made: cells as they are for `columns`, else numbers.

        >>> Reading().for_features("columns+random:64").columns, Reading().for_features("").columns
        ('auto', 'numbers')
        """
        first = features.partition("+")[0].partition(":")[0]
        return replace(self, columns=AUTO if first == COLUMNS else NUMBERS)

    def __post_init__(self) -> None:
        for name, known in (("task", (AUTO, CLASSES, NUMBERS)), ("columns", (AUTO, NUMBERS)), ("date_as", ("", DAYS))):
            if getattr(self, name) not in known:
                option = f"--{name.replace('_', '-')}"
                words = ", ".join(filter(None, known))
                raise ParameterError(f"{option} takes {words}; got {brief(getattr(self, name))}")


def names_in(text: str) -> tuple[str, ...]:
    """Names of columns, from a list with commas.

    >>> names_in("age, sex")
    ('age', 'sex')
    """
    return tuple(name for part in text.split(",") if (name := part.strip()))


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that is wrong with a table: words, and words about the row where it is seen first."""

    words: str
    row: int | None = None  # from 0 on
    rest: str = ""


Where = Callable[[Sequence[int]], Mapping[int, str]]
"""What rows are called where the table comes from: lines of a file."""


def rows_counted(rows: Sequence[int]) -> Mapping[int, str]:
    """Rows of a table without lines, counted as people count."""
    return {row: f"row {row + 1}" for row in rows}


def refuse(source: str, faults: Sequence[Fault], where: Where = rows_counted) -> None:
    """Raise one error for all faults of a table, if there are any.

    >>> refuse("a.csv", [Fault("column 'age' holds", 3, "'old'")])
    Traceback (most recent call last):
    fedsolve.errors.DataError: a.csv: column 'age' holds 'old' in row 4
    """
    if not faults:
        return
    shown = faults[:MOST_FAULTS]
    places = where(sorted({fault.row for fault in shown if fault.row is not None}))
    lines = [_line(fault, places) for fault in shown]
    if len(faults) == 1:
        raise DataError(f"{source}: {lines[0]}")
    more = [f"and {len(faults) - MOST_FAULTS} things more"] if len(faults) > MOST_FAULTS else []
    listed = "".join(f"\n- {line}" for line in [*lines, *more])
    raise DataError(f"{source}: {len(faults)} things are wrong with it:{listed}")


def _line(fault: Fault, places: Mapping[int, str]) -> str:
    if fault.row is None:
        return f"{fault.words} {fault.rest}".strip()
    got, _, way_out = fault.rest.partition("; ")
    tail = f"; {way_out}" if way_out else ""
    return f"{' '.join(filter(None, (fault.words, got)))} in {places[fault.row]}{tail}"


@dataclass(frozen=True, slots=True)
class Roles:
    """Which columns of a table are what."""

    features: tuple[str, ...]
    label: tuple[str, ...]
    client: str
    person: str
    others: tuple[str, ...] = ()  # which go through as they are

    def text_columns(self) -> set[str]:
        """The columns that are kept as their texts whatever they look like."""
        return {*self.label, *self.others} | {name for name in (self.client, self.person) if name}


def roles(names: Sequence[str], reading: Reading, faults: list[Fault], *, wanted: bool = True) -> Roles:
    """What each column is by what the user says; what cannot be is added to the faults.

    `wanted` says whether a label must be there. With the kinds of a model's columns, these are the features and what
    else there is goes through.
    """
    faults += _names(names)
    present = set(names)
    label = _label(names, reading, faults, wanted)
    client = reading.client or (_CLIENT if _CLIENT in present and not reading.kinds else "")
    for name, option in (
        (reading.client, "--client"),
        (reading.person, "--person"),
        *((n, "--drop") for n in reading.drop),
    ):
        if name and name not in present:
            faults.append(Fault(f"there is no column {name!r} ({option}); {near(name, names)}"))
    special = Counter([*label, *reading.drop, *filter(None, {client, reading.person})])
    for name in sorted(name for name, count in special.items() if count > 1 and name in present):
        faults.append(Fault(f"column {name!r} is named twice among --label, --client, --person and --drop"))
    if reading.kinds:
        missing = [name for name in reading.kinds if name not in present]
        others = tuple(name for name in names if name not in reading.kinds and name not in label)
        if missing:
            besides = [name for name in others if name != _CLIENT]
            said = f" and has {', '.join(besides[:20])} besides" if besides else ""  # one of them may be it, misspelt
            faults.append(
                Fault(f"it lacks {', '.join(missing)}{said}; the model takes the columns {', '.join(reading.kinds)}")
            )
        return Roles(tuple(n for n in reading.kinds if n in present), label, "", "", others)
    features = tuple(name for name in dict.fromkeys(names) if name not in special)
    if not features:
        faults.append(Fault(f"it has no feature columns; its columns are {', '.join(names) or 'missing'}"))
    known = {name for name in (client, reading.person) if name in present}
    return Roles(features, tuple(n for n in label if n in present), client * (client in known),
                 reading.person * (reading.person in known))  # fmt: skip


def _names(names: Sequence[str]) -> Iterable[Fault]:
    for name in names:
        if len(name) > LONGEST_TEXT or _CONTROL.search(name):
            yield Fault(f"a column's name has at most {LONGEST_TEXT} characters, and no control character; got "
                        f"{brief(name)}")  # fmt: skip
    for name, count in Counter(names).items():
        if count > 1:
            yield Fault(f"column names must differ; {brief(name)} stands {count} times")


def _label(names: Sequence[str], reading: Reading, faults: list[Fault], wanted: bool) -> tuple[str, ...]:
    if reading.label:
        for name in reading.label:
            if name not in names and wanted:
                faults.append(Fault(f"there is no column {name!r} to predict (--label); {near(name, names)}"))
        return reading.label if wanted else tuple(name for name in reading.label if name in names)
    found = tuple(name for name in _LABELS if name in names and name not in reading.kinds)
    if len(found) > 1:
        faults.append(Fault("it has columns y and label; which is the label? Say so with --label"))
    if wanted and not found:
        faults.append(Fault(f"which column is to be predicted? Say so with --label NAME; it has {_some(names)}"))
    return found[:1]


def near(name: str, names: Sequence[str]) -> str:
    """The nearest of some names, in words, or the first of them.

    >>> near("diseas", ["age", "disease"])
    "did you mean 'disease'?"
    """
    found = difflib.get_close_matches(name, names, n=2, cutoff=0.6)
    return f"did you mean {' or '.join(map(repr, found))}?" if found else f"it has {_some(names)}"


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(plain(name, 60) for name in names[:20])
    return (shown or "no columns") + (f" and {len(names) - 20} more" if len(names) > 20 else "")
