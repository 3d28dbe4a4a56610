"""The settings of `fresh`: tables of scikit-learn and statsmodels, new splits of pictures' features, Shakespeare.

Each setting is a data set, who owns which rows, what is predicted and how often it is split. Tables go in as owners
have them: their columns are agreed from sums over training rows, as for any file of a user. `benchmarks/fresh.py` says
why these and no others.
"""

from __future__ import annotations

import gzip
import json
import os
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn import datasets
from sklearn.feature_extraction.text import HashingVectorizer

import fedsolve as fs
from fedsolve.data.framed import table_of_frame
from fedsolve.data.partition import top_up
from fedsolve.features import maps
from fedsolve.rng import derive

from .real import arrays

FIRST_SEED = 100  # no earlier figure of this project has a seed of 100 or more
LEAST = 10  # samples of a client where rows are dealt out
HASHED = 512  # columns that texts are hashed to
ROLES = 30  # of Shakespeare: those with the most samples
WORD = re.compile(r"[a-z']+")

Labels = NDArray[np.int64]


@dataclass(frozen=True)
class Setting:
    """A data set, its owners, and how often it is split; everything of it is fixed here, before the first run."""

    name: str
    source: str  # the data set: settings of one source are not independent of each other
    owners: str  # in words
    read: Callable[[], fs.Table]
    kind: str = "classes"  # or numbers: what is predicted
    partition: str = "by-client"
    clients: int | None = None
    test: float | str = 0.2
    splits: int = 10
    within: bool = False  # the partition deals out the rows of each natural owner among `clients` of its own
    file: str = ""  # below $FEDSOLVE_DATA, where it is not part of a package

    @property
    def seeds(self) -> range:
        return range(FIRST_SEED, FIRST_SEED + self.splits)

    @property
    def is_table(self) -> bool:
        """Whether it comes with a package: few columns, which `glm` and `mixed` take as well."""
        return not self.file

    @property
    def present(self) -> bool:
        """Whether its file is there."""
        return self.is_table or (Path(os.environ.get("FEDSOLVE_DATA", "")) / self.file).is_file()

    def federation(self, seed: int) -> fs.Federation:
        """The clients of one split."""
        table = self.read()
        if self.within:
            dealt = replace(table, client=_within(table, self.partition, self.clients or 1, seed))
            return dealt.split("by-client", seed=seed, test=self.test)
        return table.split(self.partition, clients=self.clients, seed=seed, test=self.test, min_samples=LEAST)


def _within(table: fs.Table, partition: str, clients: int, seed: int) -> NDArray[Any]:
    """Owners that share the rows of each natural owner between them."""
    natural, deal = np.asarray(table.client), fs.dirichlet(float(partition.partition(":")[2]))
    owners = np.zeros(len(natural), dtype=np.int64)
    for place, each in enumerate(np.unique(natural)):
        rows, rng = np.flatnonzero(natural == each), derive(seed, "within", place)
        parts, _ = top_up(deal(table.labels[rows], clients, rng), LEAST, rng)
        for number, part in enumerate(parts):
            owners[rows[part]] = place * clients + number
    return owners


# --- tables of scikit-learn ---


def _bundled(load: Callable[..., Any], label: str, task: str, **options: Any) -> fs.Table:
    return table_of_frame(load(as_frame=True, **options).frame, label=label, task=task, name=label)


@cache
def breast_cancer() -> fs.Table:
    """Malignant or benign: 569 tumours, 30 measures."""
    return _bundled(datasets.load_breast_cancer, "target", "classes")


@cache
def wine() -> fs.Table:
    """Which of three growers: 178 wines, 13 measures."""
    return _bundled(datasets.load_wine, "target", "classes")


@cache
def iris() -> fs.Table:
    """Which of three species: 150 flowers, 4 measures."""
    return _bundled(datasets.load_iris, "target", "classes")


@cache
def diabetes() -> fs.Table:
    """Progression after a year: 442 patients, 10 columns."""
    return _bundled(datasets.load_diabetes, "target", "numbers", scaled=False)


# --- tables of statsmodels ---


def _frame(name: str) -> Any:
    """A data frame of statsmodels, to be changed as we like."""
    import importlib

    return importlib.import_module(f"statsmodels.datasets.{name}").load_pandas().data.copy()


def _named(values: Any, word: str) -> Any:
    """Codes as texts, in their order: word-0, word-1, ..."""
    _, places = np.unique(np.asarray(values), return_inverse=True)
    return [f"{word}-{place:02d}" for place in places]


@cache
def vote() -> fs.Table:
    """anes96: Clinton or Dole, by schooling; 944 voters, 8 columns."""
    frame = _frame("anes96").drop(columns="popul")  # its logarithm stays
    frame["vote"], frame["educ"] = frame["vote"].astype(int), _named(frame["educ"], "educ")
    return table_of_frame(frame, label="vote", client="educ", task="classes")


@cache
def left_right() -> fs.Table:
    """anes96: where voters place themselves from left (1) to right (7), by party; 944 voters, 8 columns."""
    frame = _frame("anes96").drop(columns="popul")
    frame["PID"] = _named(frame["PID"], "party")
    return table_of_frame(frame, label="selfLR", client="PID", task="numbers")


@cache
def affair() -> fs.Table:
    """fair: an affair or none, by the woman's occupation; 6,366 marriages."""
    frame = _frame("fair")
    frame["affairs"] = (frame["affairs"] > 0).astype(int)
    frame["occupation"] = _named(frame["occupation"], "work")
    frame["occupation_husb"] = _named(frame["occupation_husb"], "his")
    return table_of_frame(frame, label="affairs", client="occupation", task="classes")


@cache
def marriage() -> fs.Table:
    """fair: how she rates the marriage, from 1 to 5, as a number, by the husband's occupation."""
    frame = _frame("fair")
    frame["occupation"] = _named(frame["occupation"], "hers")
    frame["occupation_husb"] = _named(frame["occupation_husb"], "work")
    return table_of_frame(frame, label="rate_marriage", client="occupation_husb", task="numbers")


@cache
def visited() -> fs.Table:
    """randhie: any visit to a physician or none, by the insurance's share of costs; 20,190 person-years."""
    frame = _frame("randhie")
    frame["mdvis"], frame["lncoins"] = (frame["mdvis"] > 0).astype(int), _named(frame["lncoins"], "plan")
    return table_of_frame(frame, label="mdvis", client="lncoins", task="classes")


@cache
def visits() -> fs.Table:
    """randhie: log(1 + visits to a physician), by the insurance's share of costs."""
    frame = _frame("randhie")
    frame["mdvis"], frame["lncoins"] = np.log1p(frame["mdvis"]), _named(frame["lncoins"], "plan")
    return table_of_frame(frame, label="mdvis", client="lncoins", task="numbers")


@cache
def mode() -> fs.Table:
    """modechoice: whether a traveller takes this means of transport (air, train, bus or car); 210 of them."""
    frame = _frame("modechoice").drop(columns="individual")  # who it is would say nothing: it is only a number
    frame["choice"], frame["mode"] = frame["choice"].astype(int), _named(frame["mode"], "mode")
    return table_of_frame(frame, label="choice", client="mode", task="classes")


@cache
def grunfeld() -> fs.Table:
    """Investment of 11 firms in 20 years, from their value, capital and the year."""
    frame = _frame("grunfeld")
    frame["firm"] = _named(frame["firm"].astype(str), "firm")
    return table_of_frame(frame, label="invest", client="firm", task="numbers")


@cache
def engel() -> fs.Table:
    """Expenditure for food of 235 households, from their income."""
    return table_of_frame(_frame("engel"), label="foodexp", task="numbers")


@cache
def star98() -> fs.Table:
    """Share of pupils above the national median in 303 Californian districts, from 12 columns without products."""
    frame = _frame("star98")
    frame["share"] = frame["NABOVE"] / (frame["NABOVE"] + frame["NBELOW"])
    plain = [name for name in frame.columns[2:] if "_" not in name]
    return table_of_frame(frame[plain], label="share", task="numbers")


@cache
def elnino() -> fs.Table:
    """Temperature of the sea in a month, from the three months before and the year, by month of the year."""
    import pandas

    frame = _frame("elnino")
    months = [name for name in frame.columns if name != "YEAR"]
    series, years = frame[months].to_numpy().ravel(), np.repeat(frame["YEAR"].to_numpy(), len(months))
    rows = np.arange(3, len(series))
    columns = {f"back{lag}": series[rows - lag] for lag in (1, 2, 3)} | {"year": years[rows], "now": series[rows]}
    names = [f"{place:02d}-{month.lower()}" for place, month in enumerate(months, 1)]
    long = pandas.DataFrame(columns | {"month": [names[row % len(months)] for row in rows]})
    return table_of_frame(long, label="now", client="month", task="numbers")


@cache
def fertility() -> fs.Table:
    """Births per woman in a year, from the year and those ten years before, by country; countries without gaps."""
    import pandas

    frame = _frame("fertility")
    years = np.arange(1960, 2012)
    rates = frame[[str(year) for year in years]].to_numpy(dtype=float)
    whole = ~np.isnan(rates).any(1)
    rates, codes = rates[whole], frame["Country Code"].to_numpy(dtype=str)[whole]
    later = np.arange(10, len(years))
    columns = {"before": rates[:, later - 10].ravel(), "year": np.tile(years[later], len(rates)).astype(float)}
    columns |= {"rate": rates[:, later].ravel(), "country": np.repeat(codes, len(later))}
    return table_of_frame(pandas.DataFrame(columns), label="rate", client="country", task="numbers")


# --- pictures ---


@cache
def mnist() -> fs.Table:
    """The first 10,000 training images of MNIST through 512 random ReLU features."""
    data = arrays("mnist")
    pixels = data["x"][:10_000].reshape(10_000, -1).astype(np.float64) / 255.0
    return fs.Table.make("mnist", pixels, data["y"][:10_000]).with_features(maps.parse("random:512,relu"))


@cache
def cifar10() -> fs.Table:
    """The first 6,000 training and 3,000 test images of CIFAR-10 through a frozen EfficientNet-Lite0, 1280 features."""
    data = arrays("cifar10")
    network = Path(os.environ.get("FEDSOLVE_DATA", ".")) / "backbone" / "effnetlite0_224.onnx"
    pictures = fs.Table.make(
        "cifar10", data["x"][:6000], data["y"][:6000], test=(data["x_test"][:3000], data["y_test"][:3000])
    )
    return pictures.with_features(maps.parse(f"onnx:{network}"), _told)


def _told(what: str, done: int, total: int) -> None:
    print(f"{what}: {done} of {total}", file=sys.stderr, flush=True)


@cache
def pacs() -> fs.Table:
    """9,991 pictures of seven classes, EfficientNet-Lite0 features; art, cartoon, photo and sketch."""
    data = arrays("pacs-features")
    return fs.Table.make("pacs", data["x"], data["y"], client=data["client"])


# --- Shakespeare's roles ---


@cache
def _roles() -> dict[str, list[str]]:
    path = Path(os.environ.get("FEDSOLVE_DATA", ".")) / "federated" / "shakespeare_roles.json.gz"
    if not path.is_file():
        sys.exit(f"no texts: set FEDSOLVE_DATA to a folder with federated/{path.name}")
    roles: dict[str, list[str]] = json.loads(gzip.decompress(path.read_bytes()))
    return roles


def _hashed(name: str, samples: dict[str, list[tuple[str, int]]]) -> fs.Table:
    """Tokens and pairs of neighbours, hashed to columns; the roles with the most samples."""
    largest = sorted(samples, key=lambda role: (-len(samples[role]), role))[:ROLES]
    texts, labels = zip(*chain.from_iterable(samples[role] for role in largest), strict=True)
    owners = np.repeat(np.arange(len(largest)), [len(samples[role]) for role in largest])
    hashing = HashingVectorizer(n_features=HASHED, ngram_range=(1, 2), token_pattern=r"\S+", lowercase=False)
    rows = hashing.transform(texts).toarray().astype(np.float32)
    return fs.Table.make(name, rows, np.array(labels, dtype=np.int64), client=owners)


@cache
def marks() -> fs.Table:
    """Which mark ends a sentence (. ? or !), from its words without any mark; a client is a role."""

    def sentences(speech: str) -> Iterator[tuple[str, int]]:
        for text, mark in re.findall(r"([^.?!]+)([.?!])", speech):
            words = WORD.findall(text.lower())
            if len(words) >= 3:
                yield " ".join(["^", *words]), ".?!".index(mark)

    return _hashed("marks", {role: list(chain.from_iterable(map(sentences, said))) for role, said in _roles().items()})


@cache
def cloze() -> fs.Table:
    """Which of the ten commonest words is missing, from two words before and two behind; a client is a role."""
    spoken = {role: [WORD.findall(speech.lower()) for speech in said] for role, said in _roles().items()}
    counted = Counter(chain.from_iterable(chain.from_iterable(spoken.values())))
    commonest = {word: place for place, (word, _) in enumerate(counted.most_common(10))}

    def gaps(words: list[str]) -> Iterator[tuple[str, int]]:
        around = ["^", "^", *words, "$", "$"]
        for place, word in enumerate(words):
            if word in commonest:
                before, after = around[place : place + 2], around[place + 3 : place + 5]
                near = f"-2:{before[0]} -1:{before[1]} +1:{after[0]} +2:{after[1]}"
                yield near, commonest[word]

    # At most 400 of a role, from its first speeches on.
    samples = {role: list(islice(chain.from_iterable(map(gaps, said)), 400)) for role, said in spoken.items()}
    return _hashed("cloze", samples)


MNIST, CIFAR, PACS = "mnist.npz", "cifar10.npz", "pacs-features.npz"
TEXTS = "federated/shakespeare_roles.json.gz"
C, N = "classes", "numbers"
DEALT: tuple[Any, ...] = ("official", 3, False, CIFAR)  # the test set, splits, not within owners, the file
SETTINGS: tuple[Setting, ...] = (
    Setting("breast cancer", "breast cancer", "8 clients, Dirichlet 0.5", breast_cancer, C, "dirichlet:0.5", 8),
    Setting("wine", "wine", "5 clients, Dirichlet 1", wine, C, "dirichlet:1", 5),
    Setting("iris", "iris", "5 clients, Dirichlet 1", iris, C, "dirichlet:1", 5),
    Setting("anes96, vote", "anes96", "7 levels of schooling", vote),
    Setting("modechoice, taken", "modechoice", "4 means of transport", mode),
    Setting("fair, affair", "fair", "6 occupations", affair, splits=5),
    Setting("randhie, any visit", "randhie", "5 insurance plans", visited, splits=5),
    Setting("MNIST, 0.1", "mnist", "20 clients, Dirichlet 0.1", mnist, C, "dirichlet:0.1", 20, 0.2, 3, file=MNIST),
    Setting("MNIST, 1", "mnist", "20 clients, Dirichlet 1", mnist, C, "dirichlet:1", 20, 0.2, 3, file=MNIST),
    Setting("CIFAR-10, 0.1", "cifar10", "20 clients, Dirichlet 0.1", cifar10, C, "dirichlet:0.1", 20, *DEALT),
    Setting("CIFAR-10, 1", "cifar10", "20 clients, Dirichlet 1", cifar10, C, "dirichlet:1", 20, *DEALT),
    Setting("CIFAR-10, two classes", "cifar10", "20 clients, 2 classes each", cifar10, C, "classes:2", 20, *DEALT),
    Setting("PACS, domains", "pacs", "4 domains", pacs, splits=3, file=PACS),
    Setting(
        "PACS, within", "pacs", "4 domains x 5 clients, Dirichlet 0.5", pacs, C, "dirichlet:0.5", 5, 0.2, 3, True, PACS
    ),
    Setting("Shakespeare, marks", "shakespeare", "30 roles", marks, splits=5, file=TEXTS),
    Setting("Shakespeare, missing word", "shakespeare", "30 roles", cloze, splits=5, file=TEXTS),
    Setting("diabetes", "diabetes", "8 clients, Dirichlet 1", diabetes, N, "dirichlet:1", 8),
    Setting("engel", "engel", "6 clients, Dirichlet 1", engel, N, "dirichlet:1", 6),
    Setting("star98", "star98", "6 clients, Dirichlet 1", star98, N, "dirichlet:1", 6),
    Setting("grunfeld", "grunfeld", "11 firms", grunfeld, N),
    Setting("anes96, left to right", "anes96", "7 party identifications", left_right, N),
    Setting("elnino", "elnino", "12 months of the year", elnino, N),
    Setting("fair, rating", "fair", "6 occupations of husbands", marriage, N, splits=5),
    Setting("randhie, visits", "randhie", "5 insurance plans", visits, N, splits=5),
    Setting("fertility", "fertility", "192 countries", fertility, N, splits=5),
)
