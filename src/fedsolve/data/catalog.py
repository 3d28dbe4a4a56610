"""Where tables come from: data sets by name, and files."""

from __future__ import annotations

import csv
import re
import zlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.lib.npyio import NpzFile
from numpy.typing import NDArray

from fedsolve.arrays import Array
from fedsolve.data import archives, hub, images
from fedsolve.data.federation import Table
from fedsolve.errors import DataError, ParameterError, UnknownNameError, unknown
from fedsolve.features.cache import Progress
from fedsolve.rng import derive

_LABELS = ("y", "label")
_NPZ_KEYS = ("x", "y", "x_test", "y_test", "client")
NAMES = "feature_names"
_WORDS = {"y": "label", "client": "client"}


def load(name: str, *, seed: int = 0, skip_broken: bool = False, progress: Progress | None = None) -> Table:
    """The table called `name`: "digits", "synthetic:0.5,0.5", an image set of `archives`, a file, or a folder.

    Files end in .npz, .csv or .parquet. A folder holds pictures: CLASS/FILE, or CLIENT/CLASS/FILE for natural clients.
    `seed` matters for generated data alone. Pictures that cannot be read are refused by name, or left out.
    """
    suffix = Path(name).suffix.lower()
    if suffix in _READERS:
        path = Path(name)
        if not path.is_file():
            raise DataError(f"there is no file {name}")
        return table_of(read_columns(path), name)
    kind, _, argument = name.partition(":")
    if kind not in _NAMED and name and Path(name).is_dir():
        return _folder(name, skip_broken, progress)
    kept = archives.folder()
    if kind not in _NAMED and kept is not None and re.fullmatch(r"[\w.-]+", name) and (kept / f"{name}.npz").is_file():
        return table_of(read_columns(kept / f"{name}.npz"), name)
    if kind not in _NAMED:
        raise _unknown(name, kept)
    return _NAMED[kind](name, argument, seed)


def absent(name: str) -> str:
    """What is missing for a data set of this name, or nothing; without reading it."""
    kind, kept = name.partition(":")[0], archives.folder()
    if kind in (*archives.IDX_SETS, *archives.CIFAR_SETS):
        return archives.absent(kind)
    if kind in _NAMED or Path(name).exists() or (kept is not None and (kept / f"{name}.npz").is_file()):
        return ""
    where = f"{kept} lacks it" if kept else "FEDSOLVE_DATA is not set"
    return (
        f"{name} is not here: put {name}.npz (x, y, x_test, y_test) into a folder and set FEDSOLVE_DATA to it ({where})"
    )


def _unknown(name: str, kept: Path | None) -> UnknownNameError:
    """Near matches among names alone: what else may be given is no name."""
    here = [path.stem for path in kept.glob("*.npz")] if kept is not None else []
    known = {each for each in here if re.fullmatch(r"[\w.-]+", each)} | set(_NAMED)
    said = f"a file ({', '.join(_READERS)}), a folder of pictures, or NAME for NAME.npz in $FEDSOLVE_DATA"
    near = str(unknown("data set", name, known))
    return UnknownNameError(f"{near}{'' if near.endswith('?') else '.'} Or give {said}")


def _folder(name: str, skip_broken: bool, progress: Progress | None) -> Table:
    found = images.read(Path(name), skip_broken=skip_broken, progress=progress)
    labels, class_names = named_classes(np.array(found.classes))
    owners = np.array(found.clients) if found.clients else None
    return Table.make(name, found.images, labels, client=owners, class_names=class_names, skipped=found.skipped)


def table_of(columns: Mapping[str, Array], name: str) -> Table:
    """The table that columns read from a file stand for."""
    for needed in ("x", "y"):
        if needed not in columns:
            raise DataError(f"{name} needs an array {needed!r}; it holds {', '.join(columns) or 'nothing'}")
    if ("x_test" in columns) != ("y_test" in columns):
        raise DataError(f"{name} must hold both 'x_test' and 'y_test', or neither")
    labels, class_names = named_classes(columns["y"])
    test = None
    if "x_test" in columns:
        test_labels = columns["y_test"]
        if class_names:
            test_labels = class_numbers(test_labels, class_names, f"{name}, test")
        test = (columns["x_test"], test_labels)
    names = tuple(columns[NAMES].tolist()) if NAMES in columns else ()
    return Table.make(
        name,
        columns["x"],
        labels,
        test=test,
        client=columns.get("client"),
        class_names=class_names,
        feature_names=names,
    )


def named_classes(labels: Array) -> tuple[Array, tuple[str, ...]]:
    """Class numbers, and the sorted class names where labels are texts."""
    if labels.dtype.kind != "U":
        return labels, ()
    names, numbers = np.unique(labels, return_inverse=True)
    return numbers, tuple(names.tolist())


def class_numbers(labels: Array, class_names: tuple[str, ...], whose: str) -> Array:
    """The numbers of named classes."""
    if not class_names and labels.dtype.kind != "U":
        return labels
    if labels.dtype.kind == "f" and (np.floor(labels) == labels).all():
        labels = labels.astype(np.int64)
    labels = labels.astype(np.str_)  # a file that shows only the classes "1" and "2" reads as numbers
    numbers = {name: number for number, name in enumerate(class_names)}
    strange = sorted(set(labels.tolist()) - set(numbers))
    if strange:
        raise DataError(f"{whose}: unknown class {strange[0]!r}; known: {', '.join(class_names)}")
    return np.array([numbers[label] for label in labels.tolist()], dtype=np.int64)


def in_order(inputs: Array, found: tuple[str, ...], wanted: tuple[str, ...], whose: str) -> Array:
    """The columns in the order that is wanted, where both sides have names."""
    if not wanted or not found:
        return inputs
    missing, strange = sorted(set(wanted) - set(found)), sorted(set(found) - set(wanted))
    if missing or strange:
        said = [f"lacks {', '.join(missing)}"] * bool(missing) + [f"has {', '.join(strange)} besides"] * bool(strange)
        raise DataError(f"{whose}: it {' and '.join(said)}; the model takes the columns {', '.join(wanted)}")
    return inputs[:, [found.index(name) for name in wanted]]


def read_columns(path: Path) -> dict[str, Array]:
    """`x` and, where they are there, `y`, `client`, `x_test`, `y_test` of a file, and the names of its columns."""
    reader = _READERS.get(path.suffix.lower())
    if reader is None:
        raise DataError(f"cannot read {path}: wanted a file that ends in {', '.join(_READERS)}")
    try:
        return reader(path)
    except OSError as error:
        raise DataError(f"cannot read {path}: {' '.join((error.strerror or str(error)).split())}") from error


def _npz(path: Path) -> dict[str, Array]:
    try:
        with path.open("rb") as file:  # NumPy leaves it open where it is not a whole zip file
            archive = np.load(file, allow_pickle=False)  # noqa: TID251  (this is the one place)
            if not isinstance(archive, NpzFile):
                raise ValueError("it holds a single array")
            return {key: archive[key] for key in _NPZ_KEYS if key in archive.files}
    except (ValueError, BadZipFile, EOFError, KeyError, NotImplementedError, RuntimeError, zlib.error) as error:
        raise DataError(f"{path} is damaged or not an .npz file of plain arrays ({error})") from error


def _csv(path: Path) -> dict[str, Array]:
    header, lines = _csv_header(path)
    columns = _columns(header, str(path))
    if not lines:
        raise DataError(f"{path} holds no samples")

    def read(names: list[str], dtype: type) -> NDArray[Any]:
        return np.loadtxt(
            path, dtype=dtype, delimiter=",", skiprows=1, quotechar='"', comments=None, ndmin=2, encoding="utf-8-sig",
            usecols=[header.index(name) for name in names],
        )  # fmt: skip

    try:
        found: dict[str, Array] = {"x": read(columns["x"], np.float64)}
    except ValueError as error:
        raise DataError(f"{path}: every column but the label and 'client' must hold numbers ({error})") from error
    for key in ("y", "client"):
        if columns[key]:
            texts = np.char.strip(read(columns[key], np.str_)[:, 0])
            if (texts == "").any():
                raise DataError(f"{path}: the {_WORDS[key]} in row {int(np.argmax(texts == ''))} is missing")
            found[key] = _numbers_or_texts(texts) if key == "y" else texts  # "007" is not 7
    return found | {NAMES: np.array(columns["x"])}


def _csv_header(path: Path) -> tuple[list[str], int]:
    """Column names and the number of rows, each of which must have as many fields as there are names."""
    lines = 0
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file)
            header = [name.strip() for name in next(reader, [])]
            for row in reader:
                lines += bool(row)
                if row and len(row) != len(header):
                    raise DataError(f"{path}: line {reader.line_num} has {len(row)} fields, the header {len(header)}")
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path} is not a CSV file in UTF-8 ({error})") from error
    return header, lines


def _parquet(path: Path) -> dict[str, Array]:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise DataError(f"reading {path} needs pyarrow: pip install 'fedsolve[data]'") from error
    try:
        table = pq.read_table(path)
        columns = _columns(table.column_names, str(path))
        found: dict[str, Array] = {}
        texts = [name for name in columns["x"] if not _is_number(pa, table.schema.field(name).type)]
        if texts:
            raise DataError(f"{path}: column {texts[0]!r} does not hold numbers; encode it or leave it out")
        found["x"] = np.column_stack([table[name].to_numpy().astype(np.float64) for name in columns["x"]])
        for key in ("y", "client"):
            if columns[key]:
                column = table[columns[key][0]]
                if pa.types.is_dictionary(column.type):
                    column = column.cast(column.type.value_type)
                texts = pa.types.is_string(column.type) or pa.types.is_large_string(column.type)
                if not texts and not _is_number(pa, column.type):
                    raise DataError(f"{path}: {_WORDS[key]}s must be numbers or texts; got {column.type}")
                if column.null_count:
                    raise DataError(f"{path}: a {_WORDS[key]} is missing")
                values = column.to_numpy()
                found[key] = values.astype(np.str_) if texts else values
        return found | {NAMES: np.array(columns["x"])}
    except pa.ArrowException as error:
        raise DataError(f"{path} is damaged or not a Parquet file ({error})") from error


def _is_number(pa: Any, kind: Any) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind))


def _columns(names: list[str], source: str) -> dict[str, list[str]]:
    """Which columns are features, which is the label and which the client."""
    if len(set(names)) != len(names):
        raise DataError(f"{source}: column names must differ; got {', '.join(names)}")
    label = [name for name in _LABELS if name in names]
    if len(label) > 1:
        raise DataError(f"{source} has columns {' and '.join(label)}; which is the label? Leave one out")
    client = [name for name in names if name == "client"]
    features = [name for name in names if name not in (*label, *client)]
    if not features:
        raise DataError(f"{source} has no feature columns; its columns are {', '.join(names) or 'missing'}")
    return {"x": features, "y": label, "client": client}


def _numbers_or_texts(texts: NDArray[np.str_]) -> Array:
    for kind in (np.int64, np.float64):
        try:
            return texts.astype(kind)
        except ValueError:
            continue
    return texts


def _digits(name: str, argument: str, seed: int) -> Table:
    if argument:
        raise ParameterError(f"data set 'digits' takes no argument; got {name!r}")
    from sklearn.datasets import load_digits  # bundled with scikit-learn: 1,797 images of 8 x 8, ten digits

    inputs, labels = load_digits(return_X_y=True)
    return Table.make("digits", inputs, labels)


def _wards(name: str, argument: str, seed: int) -> Table:
    """The invented patients of five wards that README and docs use; examples/make_wards.py wrote them."""
    if argument:
        raise ParameterError(f"data set 'wards' takes no argument; got {name!r}")
    return table_of(read_columns(Path(__file__).with_name("wards.csv")), name)


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
    return replace(table, classes=classes)  # a small draw need not show every class; all ten exist


def _image_set(name: str, argument: str, seed: int) -> Table:
    if argument:
        raise ParameterError(f"data set {name.partition(':')[0]!r} takes no argument; got {name!r}")
    found = archives.read(name)
    if isinstance(found, Path):
        return table_of(read_columns(found), name)
    x, y, x_test, y_test = found
    return Table.make(name, x, y, test=(x_test, y_test))


def _hub(name: str, argument: str, seed: int) -> Table:
    if not argument:
        raise ParameterError("hf: needs the name of a data set, or a folder that holds one, as in hf:cifar10")
    return hub.read(argument)


_NAMED: dict[str, Callable[[str, str, int], Table]] = {
    "hf": _hub,
    "digits": _digits,
    "wards": _wards,
    "synthetic": _synthetic,
    **dict.fromkeys((*archives.IDX_SETS, *archives.CIFAR_SETS), _image_set),
}
_READERS: dict[str, Callable[[Path], dict[str, Array]]] = {".npz": _npz, ".csv": _csv, ".parquet": _parquet}
ENDINGS = tuple(_READERS)
