"""The settings of an experiment, declared once: defaults, meaning, and what files and the command line may give.

The command line builds its options from these declarations, so nothing heavy is imported here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedsolve.errors import DataError, ParameterError, brief, plain, unknown
from fedsolve.texts import read_json

if TYPE_CHECKING:
    from fedsolve.data.reading import Reading

_KEY = "fedsolve.setting"
AUTO = "auto"  # what follows from the data


def share_of(text: str) -> float | str:
    """A share of the samples as a number; any other word as it is.

    >>> share_of("0.2"), share_of("official")
    (0.2, 'official')
    """
    try:
        return float(text)
    except ValueError:
        return text


def assignments(texts: list[str]) -> dict[str, str]:
    """Parameters by name, from NAME=VALUE; their values are still texts.

    >>> assignments(["alpha=20", "beta=1"])
    {'alpha': '20', 'beta': '1'}
    """
    parameters: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise ParameterError(f"--set takes NAME=VALUE, as in --set alpha=20; got {text!r}")
        parameters[name.strip()] = value
    return parameters


@dataclass(frozen=True, slots=True)
class Kind:
    """The values a setting may have: on the command line, and in a file."""

    option: Any  # the type of the option's value
    types: tuple[type, ...]  # of the value in a file
    words: str  # what these are called in an error
    read: Callable[[Any], object] = lambda value: value  # the setting, from the option's value


TEXT = Kind(str, (str,), "a text")
WHOLE = Kind(int, (object,), "an integer")  # refused where it is used, with the range that it must lie in
NUMBER = Kind(float, (int, float), "a number")
FLAG = Kind(bool, (bool,), "true or false")
SHARE = Kind(str, (int, float, str), "a number or a text", share_of)
TABLE = Kind(list[str], (Mapping,), "a table of parameters", assignments)


@dataclass(frozen=True, slots=True)
class Option:
    """How a setting is given on the command line."""

    kind: Kind
    help: str
    metavar: str | None = None
    negative: bool = False  # of a flag: whether --no-NAME is an option, too


def _setting(default: Any, kind: Kind, help: str, metavar: str | None = None, *, negative: bool = False) -> Any:
    metadata = {_KEY: Option(kind, help, metavar, negative)}
    return (
        field(default_factory=dict, metadata=metadata) if kind is TABLE else field(default=default, metadata=metadata)
    )


@dataclass(frozen=True)
class Settings:
    """Everything that decides the outcome of a run, and what of it is shown. Texts are as on the command line.

    >>> Settings(clients=5).test
    0.2
    """

    method: str = _setting(
        "fedprior", TEXT, "See `fedsolve methods`; or package.module:Class, one of your own. Default: fedprior."
    )
    set: Mapping[str, object] = _setting(
        None, TABLE, "A parameter of the method, as in --set alpha=20. Repeat for more.", "NAME=VALUE"
    )
    data: str = _setting(
        "digits",
        TEXT,
        "digits (embedded, the default), synthetic:A,B, mnist, fashion-mnist, cifar10, cifar100, tiny-imagenet, "
        "imagenet-r, femnist, shakespeare, a file (.npz with x and y, .csv or .parquet with a column y or label), "
        "a folder of pictures (one folder per class), or hf:NAME.",
    )
    label: str = _setting(
        "", TEXT, "The column of a table that is predicted, or several numbers: A,B. Default: y or label.", "NAME"
    )
    client: str = _setting("", TEXT, "The column of a table that says whose each row is. Default: client.", "NAME")
    person: str = _setting(
        "", TEXT, "The column that says which person a row is of: no person is trained and tested on.", "NAME"
    )
    drop: str = _setting("", TEXT, "Columns of a table that are left out, separated by commas.", "NAME,...")
    task: str = _setting(
        "auto",
        TEXT,
        "classes, numbers, or auto, the default: texts, truth values and whole numbers of few values are classes, "
        "other numbers are numbers.",
    )
    columns: str = _setting(
        "auto",
        TEXT,
        "Of a table: auto, the default: numbers about the federation's means, over its deviations, empty cells filled "
        "and marked, one column for each level of texts; numbers: every cell is a number and stays as it is.",
    )
    date_as: str = _setting("", TEXT, "days: dates of a table as days since 1970. Default: they are refused.", "days")
    encoding: str = _setting(
        "", TEXT, "Of a .csv file, as in latin-1. Default: UTF-8, or UTF-16 with its mark.", "NAME"
    )
    limit: int | None = _setting(
        None,
        WHOLE,
        "Take only N of the samples, drawn by the seed; an official test set stays whole. Default: all.",
        "N",
    )
    clients: int | None = _setting(None, WHOLE, "How many clients share the data. Default: 20.")  # or the natural ones
    partition: str = _setting(
        "auto",
        TEXT,
        "iid, dirichlet:A (small A: very different clients), classes:C (C random classes per client), "
        "neighbours:C (C classes in a row; C,uneven: in uneven shares), shards:S, power-law, or by-client (the owners "
        "of the rows, --client). "
        "Default: by-client where the data name owners, else dirichlet:0.1.",
    )
    test: float | str = _setting(
        0.2,
        SHARE,
        "A share of each client's own data (default: 0.2); official: the data's own test set, dealt out in "
        "the clients' class proportions; global: all of it for every client.",
    )
    min_samples: int = _setting(2, WHOLE, "Clients with fewer samples get some from the largest. Default: 2.")
    features: str = _setting(
        "identity",
        TEXT,
        "The feature map, the same for all clients: identity (the default), standardise (about the federation's "
        "means, over its deviations), unit, clip:R, ones, "
        "random:SIZE,ACTIVATION,SEED; for pictures patches:6x6x320, filters that the federation fits (mirror=yes "
        "behind a comma for photographs), or a frozen network: onnx:FILE, hf:NAME-OR-FOLDER, torch:FILE, "
        "efficientnet-lite0; or several joined by +.",
    )
    skip_broken: bool = _setting(False, FLAG, "Leave out pictures that cannot be read.")
    seed: int = _setting(0, WHOLE, "Decides the split and all draws. Default: 0.")
    rounds: int | None = _setting(None, WHOLE, "For methods that take several. Default: the method's own.")
    participation: float | str = _setting(
        1.0,
        SHARE,
        "Share of the clients that take part in a round; 0.6-1: drawn anew for each, between these. Default: 1.",
    )
    epsilon: float | None = _setting(
        None,
        NUMBER,
        "Hide single records by noise of this epsilon, as in 1: for afl, fedhip, fedprior and apfl, with features that "
        "end in unit or clip:R. Default: no noise.",
        "E",
    )
    delta: float = _setting(1e-5, NUMBER, "The delta of the noise. Default: 1e-5.", "D")
    noise: str = _setting(
        "sites",
        TEXT,
        "Who adds the noise: sites, the default: each to what it sends; server: once, to the sum, by a server that is "
        "trusted with what sites send.",
    )
    honest: int = _setting(
        1,
        WHOLE,
        "With noise in secure sums: by how many clients of each sum it is shared that tell nobody their share, at most "
        "the quorum. Default: 1, each adds all of it.",
        "N",
    )
    target_bound: float | None = _setting(
        None, NUMBER, "With noise, where numbers are predicted: the size that they are clipped to.", "C"
    )
    devices: str | None = _setting(
        None,
        TEXT,
        "Emulate clients that are not equally fast: slow:4,16, a third each as fast as this machine, 4 and 16 times "
        "slower; slow:4@0.2,16@0.1, these shares of them; ;mbit=20 behind it: the line of the fast, where it is not "
        "100 megabits a second, and slow ones have slower lines. Seconds of clients and rounds are then those of the "
        "emulated federation; it takes no longer here, and models are the same. Default: none are emulated.",
        "SLOW",
    )
    runtime: str = _setting(
        "local",
        TEXT,
        "local, the default: all clients in this process; flower: through Flower's apps, one client after the other in "
        "this process or, where clients have much to do, on Ray; flower:inline and flower:ray say which. For machines "
        "of their own see `fedsolve deploy`.",
    )
    device: str | None = _setting(
        None,
        TEXT,
        "Where networks are trained: cpu, cuda, mps, or auto, the first of cuda, mps and cpu that is there. Default: "
        "what FEDSOLVE_DEVICE says, else cpu.",
    )
    secure: bool = _setting(
        False,
        FLAG,
        "Replies and figures are added up under masks: the server sees sums over clients, and nothing of one of them. "
        "Figures of each client stay with it. For methods that add up replies.",
    )
    quorum: int | None = _setting(
        None, WHOLE, "The fewest clients that a secure sum may be over, 3 or more. Default: 3.", "N"
    )
    alone: bool | None = _setting(
        None,
        FLAG,
        "Also train every client alone, to compare. Default: alone, where that is closed form.",
        negative=True,
    )
    eval_every: int = _setting(1, WHOLE, "Evaluate every N rounds, and after the last. Default: 1.", "N")
    metric: str | None = _setting(
        None,
        TEXT,
        "The figure that is shown: accuracy (the default for classes), balanced_accuracy, log_loss, brier, macro_f1, "
        "auc; rmse (the default for numbers), mae, r2. All are in result.json.",
        "NAME",
    )
    name: str | None = _setting(
        None, TEXT, "What the run is called in reports. Default: its method, and what tells it from others.", "NAME"
    )

    @property
    def reading(self) -> Reading:
        """How a table is read."""
        from fedsolve.data.reading import Reading, names_in

        return Reading(
            label=names_in(self.label),
            client=self.client,
            person=self.person,
            drop=names_in(self.drop),
            task=self.task,
            columns=self.columns,
            date_as=self.date_as,
            encoding=self.encoding,
            varied=True,
        )

    @classmethod
    def of(cls, values: Mapping[str, Any], source: str) -> Settings:
        """Settings from a mapping read from a file called `source`.

        >>> Settings.of({"clients": 5}, "c.toml").clients
        5
        """
        declared = {item.name: item for item in fields(cls)}
        for name, value in values.items():
            if name not in declared:
                raise unknown(f"setting in {source}:", name, declared)
            kind: Kind = declared[name].metadata[_KEY].kind
            absent = value is None and declared[name].default is None
            if not absent and not isinstance(value, kind.types):
                raise ParameterError(f"setting {name!r} in {source} must be {kind.words}; got {brief(value)}")
        return cls(**values)


def read_config(path: Path) -> dict[str, Any]:
    """The settings in a TOML file, or in the result.json of a run, by name; `Settings.of` checks them."""
    import tomllib

    try:
        content = path.read_bytes()
        values = read_json(content, str(path)) if path.suffix == ".json" else tomllib.loads(content.decode())
        settings = values["settings"] if path.suffix == ".json" else values
        if not isinstance(settings, dict):
            raise TypeError(f"its settings must be values by name; got {brief(settings)}")
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from error
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        reason = "its brackets are nested too deeply" if isinstance(error, RecursionError) else plain(str(error))
        raise DataError(f"{path} is not a TOML file of settings, nor the result.json of a run ({reason})") from error
    if path.suffix == ".json" and "data" not in settings:
        raise DataError(f"{path} comes from fs.run: it does not say where its data are, so it cannot be run from here")
    return settings


def options() -> dict[str, Option]:
    """How each setting is given on the command line, in the order of `Settings`.

    >>> options()["clients"].help
    'How many clients share the data. Default: 20.'
    """
    return {item.name: item.metadata[_KEY] for item in fields(Settings)}


def option_name(name: str) -> str:
    """A setting as an option.

    >>> option_name("min_samples")
    '--min-samples'
    """
    return f"--{name.replace('_', '-')}"
