"""What all sides of a federation agree on: method, settings, classes, feature space, and what the server starts from.

A ledger holds its terms; an invitation carries them to a site; a contribution says which it was made for.
"""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedsolve import arrays as named
from fedsolve import codec, methods, parameters, thin
from fedsolve.arrays import Arrays, Layout
from fedsolve.data.samples import Samples
from fedsolve.data.target import Classes, target_words
from fedsolve.data.task import Task
from fedsolve.errors import DataError, FedsolveError, ParameterError
from fedsolve.features.cache import extract
from fedsolve.features.elsewhere import Elsewhere
from fedsolve.features.maps import difference
from fedsolve.laws import SendsNothing
from fedsolve.method import Method, Server, Site
from fedsolve.moments import Moments
from fedsolve.rng import check_seed, derive

FORMAT = "2"
PROBE = "client-0"
_WORDS = {"method": "its method is", "settings": "its settings are", "classes": "its number of classes is"}


@dataclass(frozen=True, slots=True, eq=False)
class Terms:
    """A closed-form federation before anybody is in it."""

    method: Method
    task: Task
    seed: int
    start: Arrays  # the server's state before the first contribution; it stays there
    message: Arrays  # what a client is sent before it contributes
    layout: Layout  # of a contribution: names, types, shapes
    ones: int | None = None  # the feature that is always one, where there is one
    bound: float | None = None  # the length that no sample's features exceed, where one is declared

    def __repr__(self) -> str:
        return f"Terms({self.method.name!r}, {target_words(self.task.target)}, features {self.task.described[:200]})"

    @classmethod
    def make(cls, method: Method, task: Task, *, seed: int = 0, bound: float | None = None) -> Terms:
        """The terms of a method on a task. The method must add up one round of moments; others are refused."""
        if bound is not None and not 0 < bound < math.inf:
            raise ParameterError(f"bound must be a positive number; got {bound!r}")
        seed = check_seed(seed)
        _check_method(method)
        start = method.init_server(Server(task, 0, derive(seed, "server")))
        _check_fold(method, start)
        blank, drawn = (_reply(method, task, seed, start, sample) for sample in _samples(task))
        layout = named.layout(blank)
        _check_layout(method, layout)
        always = np.flatnonzero(
            (Moments.from_arrays(blank).diagonal() == 1.0) & (Moments.from_arrays(drawn).diagonal() == 1.0)
        )
        ones = int(always[-1]) if len(always) else None
        return cls(method, task, seed, start, method.message(start, PROBE, "update"), layout, ones, bound)

    @property
    def shape(self) -> tuple[int, int]:
        """Features and targets of the moments."""
        features, targets = next(shape for name, _, shape in self.layout if name == "cross")
        return features, targets

    @property
    def zero(self) -> Arrays:
        """The moments of nobody, laid out as contributions are."""
        squares = any(name == "squares" for name, _, _ in self.layout)
        return Moments.zero(*self.shape, squares=squares).arrays()

    def aggregate(self, total: Arrays) -> Arrays:
        """The server's state with the sum over those who are in."""
        server = Server(self.task, 1, derive(self.seed, "aggregate", 1))
        return self.method.aggregate(self.start, total, server)

    @property
    def digest(self) -> str:
        """The digest of everything that decides what a contribution means.

        Its words are those of format 1, so that contributions go to a ledger whichever version made the two.
        """
        task = self.task
        words = {
            "class_names": json.dumps(task.class_names),
            "classes": str(task.classes or task.target.words()),
            "feature_names": json.dumps(task.feature_names),
            "fedsolve": "1",
            "identity": task.features.identity,
            "inputs": json.dumps(task.inputs),
            "layout": json.dumps(self.layout),
            "method": self.method.name,
            "ones": json.dumps(self.ones),
            "settings": _settings(self.method),
            "width": json.dumps(task.shape),
        }
        digest = hashlib.sha256(json.dumps(words).encode())
        digest.update(codec.encode(self.message))
        return digest.hexdigest()[:32]

    def metadata(self) -> dict[str, str]:
        """All of it but the arrays, as texts."""
        return {
            "fedsolve": FORMAT,
            "made": "terms",
            "method": self.method.name,
            "settings": _settings(self.method),
            "seed": str(self.seed),
            "task": self.task.to_text(),
            "layout": json.dumps(self.layout),
            "ones": json.dumps(self.ones),
            "bound": json.dumps(self.bound),
        }

    def write(self) -> codec.Bytes:
        """All of it as bytes, for the server."""
        return codec.encode(named.under("start", self.start) | named.under("sent", self.message), self.metadata())

    def save(self, path: Path) -> None:
        """Write an invitation: all that a site needs to contribute."""
        codec.write_file(path, named.under("sent", self.message), self.metadata())

    @classmethod
    def read(cls, arrays: Arrays, texts: dict[str, str], source: str, features: str | None = None) -> Terms:
        """The terms in arrays and texts. `features` says what the feature map is here; None: it is not needed here.

        Nothing that the texts name is opened or imported. Methods that `make` would refuse are refused.
        """
        try:
            if texts.get("fedsolve") not in ("1", FORMAT) or "layout" not in texts:
                raise DataError(f"it holds no terms of a federation, format 1 or {FORMAT}")
            task = _task_of_format_1(texts) if texts["fedsolve"] == "1" else Task.from_text(texts["task"])
            if features is not None:
                task = task.located(features)
            if isinstance(task.features, Elsewhere) and features is not None:
                raise task.features.refusal()
            method = methods.restored(texts["method"], json.loads(texts["settings"]))
            _check_method(method)
            layout = tuple((str(n), str(kind), tuple(shape)) for n, kind, shape in json.loads(texts["layout"]))
            _check_layout(method, layout)
            ones, bound = json.loads(texts["ones"]), json.loads(texts["bound"])
            start, sent = named.take("start", arrays), named.take("sent", arrays)
            _check_fold(method, start)
            return cls(method, task, int(texts["seed"]), start, sent, layout, ones, bound)
        except FedsolveError as error:
            raise DataError(f"{source} cannot be used: {error}") from error
        except (KeyError, ValueError, TypeError, AttributeError, StopIteration, OverflowError, RecursionError) as error:
            raise DataError(f"{source} is damaged: {type(error).__name__}: {error}") from error

    def refusal(self, labels: dict[str, str]) -> str | None:
        """Why something made for other terms cannot be taken; None where they are these."""
        if labels.get("terms") == self.digest:
            return None
        own_labels, space = self.labels(), labels.get("space", "unknown")
        if space != self.task.described:
            return f"its features are not the federation's: {difference(space, self.task.described)}"
        for key, words in _WORDS.items():
            if labels.get(key) != own_labels[key]:
                return f"{words} {labels.get(key)}, not the federation's {own_labels[key]}"
        return "it was made for another federation: another start, or other names of classes or columns"

    def labels(self) -> dict[str, str]:
        """What a contribution or message says of the terms it was made for."""
        return {
            "terms": self.digest,
            "space": self.task.described,
            "method": self.method.name,
            "settings": _settings(self.method),
            "classes": str(self.task.classes or self.task.target.words()),
        }


def _settings(method: Method) -> str:
    """The settings that decide what a contribution means. It is sums, whether or not replies of a run are thin."""
    return json.dumps({name: value for name, value in parameters.values(method).items() if name != "thin"})


def _check_method(method: Method) -> None:
    """Refuse a method that is not solved from one round of sums, before anything is asked of it."""
    if method.rounds != 1 or not method.closed_form:
        raise ParameterError(
            f"a ledger keeps one contribution per client, and {method.name} takes {method.rounds} rounds"
            f"{'' if method.closed_form else ' of descent'}; use a closed-form method such as afl, fedhip, apfl or "
            "fedprior"
        )


def _check_fold(method: Method, start: Arrays) -> None:
    """Refuse a method that does anything but add up what all clients send."""
    names = (PROBE, "client-1")
    plan = method.plan(start, names)
    if plan.fold != "sum" or tuple(plan.clients) != names:
        raise ParameterError(f"a ledger keeps sums over all clients, and {method.name} does not fold by a sum")


def _check_layout(method: Method, layout: Layout) -> None:
    """Refuse a method whose clients send anything but moments."""
    silent = any(isinstance(law, SendsNothing) for law in method.laws)
    if silent or [name for name, _, _ in layout if name != "squares"] != ["count", "cross", "triangle"]:
        raise ParameterError(
            f"a ledger keeps moments (triangle, cross, count); a client of {method.name} sends "
            f"{'nothing' if silent else named.words(layout)}; use a closed-form method such as afl, fedhip, apfl or "
            "fedprior"
        )


def load_terms(path: Path, features: str = "") -> Terms:
    """The terms in an invitation, with the feature map that is here: `features`, where it takes a network."""
    arrays, texts = codec.read_file(path)
    return Terms.read(arrays, texts, str(path), features)


def _task_of_format_1(texts: dict[str, str]) -> Task:
    """The task in terms that version 0.1.0 wrote, where its parts stand one by one."""
    return Task(
        target=Classes(int(texts["classes"]), tuple(json.loads(texts["class_names"]))),
        inputs=tuple(json.loads(texts["inputs"])),
        features=Elsewhere(texts["features"], texts["identity"], tuple(json.loads(texts["width"]))),
        feature_names=tuple(json.loads(texts["feature_names"])),
    )


def _samples(task: Task) -> tuple[Samples, Samples]:
    """A blank sample and a drawn one, to see what a method makes of them."""
    shape = tuple(32 if side < 0 else side for side in task.inputs)
    drawn = derive(0, "ledger", "probe").integers(1, 255, size=(1, *shape)).astype(np.uint8)
    label = np.zeros((1, task.outputs)) if task.target.kind == "numbers" else np.zeros(1, dtype=np.int64)
    features, prepared = task.features, task.preparation
    blank, some = (prepared.example(rows) if prepared else rows for rows in (np.zeros_like(drawn), drawn))
    return Samples(extract(features, blank, keep=False), label), Samples(extract(features, some, keep=False), label)


def _reply(method: Method, task: Task, seed: int, start: Arrays, sample: Samples) -> Arrays:
    return reply(method, task, seed, method.message(start, PROBE, "update"), PROBE, sample)[1]


def reply(
    method: Method, task: Task, seed: int, message: Arrays, client: str, train: Samples
) -> tuple[Arrays, Arrays, Arrays]:
    """What a client is before it contributes, its contribution, and what it is after that.

    A ledger keeps sums, since they can be taken out again: thin replies become moments at the site.
    """
    private = method.init_client(Site(task, train, 1, derive(seed, "client", client)))
    after, sent = method.update(private, message, Site(task, train, 1, derive(seed, "update", client, 1)))
    return private, thin.as_moments(sent, task.outputs), after
