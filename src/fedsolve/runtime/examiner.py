"""Whether replies can be what they say they are, before they are added to those of others.

Replies that are moments are held to what moments of samples are (`fedsolve.census`), whoever they come from. Whether a
method's targets are labels, and which feature is always one, is found by trying the method on two samples.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from fedsolve import arrays as named
from fedsolve import census, thin
from fedsolve.arrays import Arrays
from fedsolve.data.samples import Samples
from fedsolve.data.task import Task
from fedsolve.errors import DataError
from fedsolve.method import Method, Site
from fedsolve.moments import Moments
from fedsolve.rng import derive

TRIAL = "trial"  # the name of the client that a method is tried on; its generators are nobody else's


@dataclass(frozen=True, slots=True)
class Form:
    """What the moments of a round look like."""

    shape: tuple[int, int]  # features and targets
    ones: int | None  # the feature that is always one, where there is one


def form(method: Method, task: Task, message: Arrays, number: int, seed: int) -> Form | None:
    """The form of the moments that clients send in a round; None where the targets are not labels, or nothing is known.

    >>> import fedsolve as fs
    >>> form(fs.AFL(intercept=True), fs.Task(fs.Classes(2), (3,)), {}, 1, 0)
    Form(shape=(4, 2), ones=3)
    """
    if not task.classes:
        return None
    labels = (0, task.classes - 1)
    try:
        samples = [_sample(task, *kind) for kind in zip(labels, (0.0, 1.0), strict=True)]
        replies = [_reply(method, task, message, number, seed, sample) for sample in samples]
    except Exception:  # noqa: BLE001  (a method of the user's own may refuse such samples with any error)
        return None
    if not all(Moments.are(reply) for reply in replies):
        return None
    both = [Moments.from_arrays(reply) for reply in replies]
    shape = both[0].features, both[0].targets
    if shape[1] != task.classes or shape != (both[1].features, both[1].targets):
        return None
    always = np.ones(shape[0], dtype=bool)
    for moments, label in zip(both, labels, strict=True):
        sums, squares, n = moments.cross[:, label], moments.diagonal(), moments.count
        others = np.delete(moments.cross, label, axis=1)
        # All rows of such a client have one label, so its class sums are the sums over its rows, of one row the row.
        if n < 1 or others.any() or not (sums**2 <= (1 + census.EXACT) * n * squares).all():
            return None
        if n == 1 and not np.allclose(sums**2, squares, rtol=census.EXACT, atol=0.0):
            return None
        always &= (squares == n) & (sums == n)
    places = np.flatnonzero(always)
    return Form(shape, int(places[-1]) if len(places) else None)


def turned(method: Method, task: Task, message: Arrays, number: int, seed: int) -> tuple[int, int] | None:
    """How many features and targets the moments have that thin replies of a round stand for; None if nothing is known.

    >>> import fedsolve as fs
    >>> turned(fs.AFL(thin=True), fs.Task(fs.Numbers(("a", "b")), (30,)), {}, 1, 0)
    (31, 2)
    """
    blank = np.zeros(1, dtype=np.int64) if task.classes else np.zeros((1, task.outputs))
    try:
        reply = _sent(method, task, message, number, seed, Samples(np.zeros((1, *task.shape)), blank))
    except Exception:  # noqa: BLE001  (a method of the user's own may refuse such samples with any error)
        return None
    if thin.are(reply):
        return thin.features(reply), task.outputs
    return (len(reply["cross"]), task.outputs) if Moments.are(reply) else None


def _sample(task: Task, label: int, size: float) -> Samples:
    """One sample: blank, or drawn between 0 and `size`, where any method finds it among its own."""
    drawn = derive(0, "runtime", TRIAL).uniform(0.1, 0.9, size=(1, *task.shape))
    return Samples(size * drawn, np.array([label]))


def _reply(method: Method, task: Task, message: Arrays, number: int, seed: int, train: Samples) -> Arrays:
    """What a client with these samples sends in its first round, were it the one of that number, as moments."""
    return thin.as_moments(_sent(method, task, message, number, seed, train), task.outputs)


def _sent(method: Method, task: Task, message: Arrays, number: int, seed: int, train: Samples) -> Arrays:
    private = method.init_client(Site(task, train, number, derive(seed, "client", TRIAL)))
    return method.update(private, message, Site(task, train, number, derive(seed, "update", TRIAL, number)))[1]


class Examiner:
    """Refuses replies of a round that are moments of no samples, with the reason.

    Every number is looked at. The thorough look takes one Cholesky factor per reply, as much as many a client takes for
    all its work: it is for replies that come from elsewhere. For others the method is not even tried, unless something
    looks wrong.
    """

    def __init__(self, tried: Callable[[], Form | None], *, thorough: bool) -> None:
        self._tried, self._thorough = tried, thorough
        self._lock, self._forms = threading.Lock(), list[Form | None]()  # replies come from several threads

    def look(self, reply: Arrays) -> None:
        """Refuse a reply that is moments, but of no samples; sums of anything else are the method's affair."""
        if not Moments.are(reply):
            return
        if "squares" in reply:  # of targets that are numbers
            if self._thorough:
                census.examine_numbers(reply)
            else:
                census.samples(reply)
            return
        if not self._thorough:
            try:
                census.glance(reply)
            except DataError:
                if self._form() is not None:
                    raise
                census.samples(reply)  # no labels are in it, so F'Y may be of any size
            return
        known = self._form()
        if known is None:
            census.samples(reply)
            Moments.from_arrays(reply).factor()
            return
        if reply["cross"].shape != known.shape:
            raise DataError(
                f"its reply has {named.words(named.layout(reply))}, and F'Y is {list(known.shape)} for this task"
            )
        census.examine(reply, ones=known.ones)

    def _form(self) -> Form | None:
        """Found when it is first needed, and once: many methods never send any moments."""
        with self._lock:
            if not self._forms:
                self._forms.append(self._tried())
            return self._forms[0]
