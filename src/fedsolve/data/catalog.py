"""Where tables come from: data sets by name, files and folders."""

from __future__ import annotations

import gzip
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from fedsolve.arrays import Array
from fedsolve.data import archives, folders, hub, layouts, leaf
from fedsolve.data.files import ENDINGS, NAMES, READERS, read_columns, read_content
from fedsolve.data.labels import named_classes, target_of
from fedsolve.data.reading import AUTO, NUMBERS, Reading
from fedsolve.data.sheets import Content
from fedsolve.data.table import Table
from fedsolve.data.target import Classes
from fedsolve.errors import DataError, ParameterError, UnknownNameError, plain, unknown
from fedsolve.progress import Progress
from fedsolve.rng import derive

__all__ = ["ENDINGS", "absent", "load", "read_columns", "table_of"]
_PLAIN = re.compile(r"[\w.-]+")  # a name that is no path


def load(
    name: str,
    *,
    seed: int = 0,
    skip_broken: bool = False,
    progress: Progress | None = None,
    reading: Reading | None = None,
) -> Table:
    """The table called `name`: "digits", "synthetic:0.5,0.5", a set of `archives` or `layouts`, a file, or a folder.

    Files end in .npz, .csv or .parquet. A folder holds pictures: CLASS/FILE, or CLIENT/CLASS/FILE for natural clients;
    or it is laid out as Tiny-ImageNet or LEAF are. Official CIFAR archives are known by their names. Other names are
    those of NAME.npz or of a folder NAME of pictures in the folder that $FEDSOLVE_DATA names. `seed`
    matters for generated data alone. Pictures that cannot be read are refused by name, or left out. `reading` says
    which columns of a .csv or .parquet file are what; without it the label is `y` or `label`, the owner `client`.

    >>> load("digits")
    Table('digits', 1797 samples, 10 classes, inputs (64,), features identity)
    """
    suffix = Path(name).suffix.lower()
    if suffix in READERS:
        path = Path(name)
        if not path.is_file():
            raise DataError(f"there is no file {name}")
        return _file(path, name, reading or Reading())
    kind, _, argument = name.partition(":")
    if kind == "wards":
        return _wards(name, argument, reading or Reading())
    _check_no_table(reading, name)
    if kind in _NAMED:
        return _NAMED[kind](name, argument, seed)
    if archives.is_archive(Path(name)):
        return _archive(name)
    columns = layouts.columns(kind, name, argument)
    base = kind if kind in layouts.OFFICIAL else name
    place = Path(base) if base and Path(base).is_dir() else _kept(base)
    if place is None:
        raise DataError(layouts.absent(base)) if base in layouts.OFFICIAL else _unknown(name)
    if place.is_dir():
        return layouts.read(place, name, columns, skip_broken=skip_broken, progress=progress)
    return _file(place, name, reading or Reading())


def _check_no_table(reading: Reading | None, name: str) -> None:
    """Refuse to be told of columns of what has none."""
    usual, told = Reading(), reading or Reading()
    given = [each for each in Reading.__slots__ if each != "varied" and getattr(told, each) != getattr(usual, each)]
    if given and given not in (["columns"], ["task"]):
        option = f"--{given[0].replace('_', '-')}"
        raise ParameterError(f"{option} is for tables, .csv or .parquet files; {name} has no columns with names")


def _file(path: Path, name: str, reading: Reading) -> Table:
    """The table in a file: arrays, or columns with names."""
    if path.suffix.lower() == ".npz":
        _check_no_table(reading, name)
        return table_of(read_columns(path), name, reading.task)
    return content_table(read_content(path, reading, partial(check_target, reading)), name, reading)


def check_target(reading: Reading, labels: Array, names: Sequence[str]) -> None:
    """Refuse labels that pose no task."""
    what = f"the label {', '.join(names)}"
    target_of(labels, reading.task, what, names)
    if reading.varied and len(labels) > 1 and not (labels != labels[0]).any():
        raise DataError(f"{what}: all are equal ({plain(str(labels[0]), 40)!r}), so there is nothing to tell apart")


def content_table(content: Content, name: str, reading: Reading) -> Table:
    """The table of columns that were read, with the target that its labels pose."""
    if content.labels is None:
        raise DataError(f"{name} has no labels; say which column is to be predicted with --label NAME")
    target, labels = target_of(content.labels, reading.task, name, content.label)
    return Table.make(
        name,
        content.inputs,
        labels,
        client=content.client,
        person=content.person,
        feature_names=content.names,
        **({"class_names": target.names} if isinstance(target, Classes) and target.names else {"target": target}),
    )


def is_name(text: str) -> bool:
    """Whether a text is the name of a data set of the catalogue: no path, and nothing on a hub.

    >>> is_name("digits"), is_name("synthetic:1,0.5"), is_name("digits:a.csv"), is_name("hf:cifar10")
    (True, True, False, False)
    """
    return text in _NAMED.keys() - {"hf", "synthetic"} or re.fullmatch(r"synthetic:[0-9.,]*", text) is not None


def absent(name: str) -> str:
    """What is missing for a data set of this name, or nothing; without reading it."""
    kind, home = name.partition(":")[0], archives.folder()
    if kind in (*archives.IDX_SETS, *archives.CIFAR_SETS):
        return archives.absent(kind)
    base = kind if kind in layouts.OFFICIAL else name
    if kind in _NAMED or Path(base).exists() or _kept(base) is not None:
        return ""
    if base in layouts.OFFICIAL:
        return layouts.absent(base)
    where = f"{home} holds neither" if home else "FEDSOLVE_DATA is not set"
    return (
        f"{name} is not here: put {name}.npz (x, y, x_test, y_test) or a folder {name} of pictures ({name}/CLASS/FILE) "
        f"into a folder and set FEDSOLVE_DATA to it ({where})"
    )


def _kept(name: str) -> Path | None:
    """NAME.npz, or the folder NAME of pictures or of LEAF, where data sets are kept."""
    home = archives.folder()
    if home is None or not _PLAIN.fullmatch(name):
        return None
    if (home / f"{name}.npz").is_file():
        return home / f"{name}.npz"
    places = [home / each for each in layouts.folders_of(name)]
    return next((each for each in places if leaf.files(each) or folders.has_pictures(each)), None)


def _unknown(name: str) -> UnknownNameError:
    """Near matches among names alone: what else may be given is no name."""
    home = archives.folder()
    kept = [path.stem if path.suffix == ".npz" else path.name for path in home.glob("*")] if home is not None else []
    names = {each for each in kept if _kept(each) is not None} | {*_NAMED, *layouts.OFFICIAL}
    others = (
        f"a file ({', '.join(READERS)}), a folder of pictures, or NAME for NAME.npz or a folder NAME of pictures in "
        f"$FEDSOLVE_DATA ({home or 'not set'})"
    )
    near = str(unknown("data set", name, names))
    return UnknownNameError(f"{near}{'' if near.endswith('?') else '.'} Or give {others}")


def table_of(columns: Mapping[str, Array], name: str, task: str = AUTO) -> Table:
    """The table that arrays read from a file stand for. Labels that are not whole numbers are numbers to predict."""
    for needed in ("x", "y"):
        if needed not in columns:
            raise DataError(f"{name} needs an array {needed!r}; it holds {', '.join(columns) or 'nothing'}")
    if ("x_test" in columns) != ("y_test" in columns):
        raise DataError(f"{name} must hold both 'x_test' and 'y_test', or neither")
    told = columns["y"]
    if task == NUMBERS or (task == AUTO and _are_numbers(told)):
        target, labels = target_of(told, NUMBERS, name, _number_names(told))
        tests = (columns["x_test"], columns["y_test"]) if "x_test" in columns else None
        return Table.make(name, columns["x"], labels, test=tests, client=columns.get("client"), target=target)
    labels, class_names = named_classes(told)
    test = None
    if "x_test" in columns:
        test_labels = columns["y_test"]
        if class_names:
            test_labels = Classes(len(class_names), class_names).read(test_labels, f"{name}, test")
        test = (columns["x_test"], test_labels)
    return Table.make(
        name,
        columns["x"],
        labels,
        test=test,
        client=columns.get("client"),
        class_names=class_names,
        feature_names=tuple(columns[NAMES].tolist()) if NAMES in columns else (),
    )


def _are_numbers(labels: Array) -> bool:
    """Whether labels of an array are numbers to predict: several in a row, or not whole."""
    if labels.dtype.kind != "f" or labels.ndim not in (1, 2):
        return False
    return labels.ndim == 2 or bool(np.isfinite(labels).all() and (np.floor(labels) != labels).any())


def _number_names(labels: Array) -> tuple[str, ...]:
    width = labels.shape[1] if labels.ndim == 2 else 1
    return ("y",) if width == 1 else tuple(f"y{place}" for place in range(1, width + 1))


def _digits(name: str, argument: str, seed: int) -> Table:
    if argument:
        raise ParameterError(f"data set 'digits' takes no argument; got {name!r}")
    # 1,797 images of 8 x 8, ten digits, in a file of scikit-learn's. `load_digits` reads the same numbers from it, but
    # to import scikit-learn takes three times as long as a whole run.
    package = find_spec("sklearn")
    if package is None or package.origin is None:
        raise DataError(
            "the data set 'digits' is a file of scikit-learn, which is not installed: pip install scikit-learn"
        )
    with gzip.open(Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz", "rt") as file:
        rows = np.loadtxt(file, delimiter=",")
    return Table.make("digits", rows[:, :-1], rows[:, -1].astype(int))


def _wards(name: str, argument: str, reading: Reading) -> Table:
    """The invented patients of five wards that README and docs use; examples/make_wards.py wrote them."""
    if argument:
        raise ParameterError(f"data set 'wards' takes no argument; got {name!r}")
    return _file(Path(__file__).with_name("wards.csv"), name, reading)


def _synthetic(name: str, argument: str, seed: int) -> Table:
    """Synthetic(a, b) of Li et al. 2020, "Federated Optimization in Heterogeneous Networks", section 5.1.

    Client k has its own softmax model with entries of mean u_k ~ N(0, a) and its own input mean v_k with
    entries ~ N(B_k, 1), B_k ~ N(0, b); inputs have covariance diag(j^-1.2); sizes follow a power law.
    """
    parts = argument.split(",")
    try:
        a, b = float(parts[0]), float(parts[1])
        clients = int(parts[2]) if len(parts) > 2 else 20
    except (ValueError, IndexError):
        raise ParameterError(
            f"data set 'synthetic' is written synthetic:A,B or synthetic:A,B,CLIENTS; got {name!r}"
        ) from None
    if not (0 <= a < np.inf and 0 <= b < np.inf and clients >= 1 and len(parts) <= 3):
        raise ParameterError(f"synthetic:A,B,CLIENTS needs A and B of at least 0 and a client or more; got {name!r}")
    features, classes = 60, 10
    deviation = np.sqrt(np.arange(1, features + 1) ** -1.2)
    inputs, labels, owners = [], [], []
    for client in range(clients):
        rng = derive(seed, "synthetic", client)
        size = 50 + int(rng.lognormal(4.0, 2.0))
        mean = rng.normal(rng.normal(0.0, np.sqrt(b)), 1.0, features)
        centre = rng.normal(0.0, np.sqrt(a))
        weights, bias = rng.normal(centre, 1.0, (features, classes)), rng.normal(centre, 1.0, classes)
        x = rng.normal(mean, deviation, (min(size, 20_000), features))
        inputs.append(x)
        labels.append(np.argmax(x @ weights + bias, axis=1))
        owners.append(np.full(len(x), client))
    table = Table.make(name, np.concatenate(inputs), np.concatenate(labels), client=np.concatenate(owners))
    return replace(table, target=Classes(classes))  # a small draw need not show every class; all ten exist


def _image_set(name: str, argument: str, seed: int) -> Table:
    if argument:
        raise ParameterError(f"data set {name.partition(':')[0]!r} takes no argument; got {name!r}")
    content = archives.read(name)
    return table_of(read_columns(content), name) if isinstance(content, Path) else _official(name, content)


def _archive(name: str) -> Table:
    """The table of an official archive, wherever it lies."""
    if not Path(name).is_file():
        raise DataError(f"there is no file {name}")
    return _official(name, archives.read_archive(Path(name)))


def _official(name: str, content: archives.Four) -> Table:
    x, y, x_test, y_test = content
    return Table.make(name, x, y, test=(x_test, y_test))


def _hub(name: str, argument: str, seed: int) -> Table:
    if not argument:
        raise ParameterError("hf: needs the name of a data set, or a folder that holds one, as in hf:cifar10")
    return hub.read(argument)


_NAMED: dict[str, Callable[[str, str, int], Table]] = {
    "hf": _hub,
    "digits": _digits,
    "wards": lambda name, argument, seed: _wards(name, argument, Reading()),
    "synthetic": _synthetic,
    **dict.fromkeys((*archives.IDX_SETS, *archives.CIFAR_SETS), _image_set),
}
