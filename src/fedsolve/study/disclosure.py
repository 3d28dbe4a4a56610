"""What sites would disclose by what they send in plain, before anything is sent: what `fedsolve disclose` calls."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from fedsolve import thin
from fedsolve.arrays import Arrays, Float
from fedsolve.data.federation import Client
from fedsolve.data.task import Task
from fedsolve.errors import ParameterError, unknown
from fedsolve.features import maps
from fedsolve.method import Method, Server, Site
from fedsolve.moments import Moments
from fedsolve.privacy.disclose import Report, Rules, report
from fedsolve.privacy.reconstruct import MOST_ROWS, Guess, Match, compare, reconstruct
from fedsolve.progress import Progress
from fedsolve.rng import derive
from fedsolve.study.experiment import Settings, method_of, prepare, table_of
from fedsolve.study.settings import AUTO

ENOUGH = 5  # rows that a demonstration should have


@dataclass(frozen=True, eq=False)
class Demonstration:
    """The rows of a site as somebody who sees its sums would find them, beside the true ones."""

    rows: Float = field(repr=False)
    found: Float = field(repr=False)  # in the order of `rows`
    match: Match
    pictures: tuple[int, ...] = ()  # the shape of a row as a picture, where it is one

    def sentence(self) -> str:
        """How much was found."""
        match = self.match
        return (
            f"tried on these very sums: {100 * match.alike:.0f} % of the rows were recovered, {100 * match.exact:.0f} "
            f"% number by number, and {100 * match.labels:.0f} % of the labels"
        )


@dataclass(frozen=True, eq=False)
class Disclosure:
    """What one site would disclose."""

    site: str
    report: Report
    shown: Demonstration | None = None


def disclosures(
    settings: Settings, site: str = "", rules: Rules | None = None, progress: Progress | None = None
) -> list[Disclosure]:
    """What each site of an experiment would disclose, or one by its name; of one, rows are recovered where they can be.

    That is the one with fewest, of those with at least `ENOUGH`. A file that names no owners is one site's, unless the
    settings say how it is split.

    >>> found = disclosures(Settings(clients=20, partition="dirichlet:0.1"), site="client-02")
    >>> [each.report.refusals()[0] for each in found]
    ['3 classes (2, 5, 9) with fewer than 5 samples']
    """
    method = method_of(settings)
    undecided = settings.partition == AUTO and settings.clients is None and Path(settings.data).exists()
    if undecided and table_of(settings, progress).client is None:
        settings = replace(settings, clients=1, partition="iid")
    ready = prepare(settings, progress)
    clients, task = ready.federation.clients, ready.federation.task
    if site and site not in clients:
        raise unknown("site", site, clients)
    names = [site] if site else sorted(clients)
    replies = {name: _reply(method, task, clients[name], settings.seed) for name in names}
    sent = {name: _sums(method, task, reply) for name, reply in replies.items()}
    found = {
        name: report(
            clients[name].train,
            task.target,
            ones=sent[name].features > task.width,
            names=task.columns,
            rules=rules,
            thin=thin.are(replies[name]),
        )
        for name in names
    }
    open_rows = [name for name in names if found[name].reconstructible and found[name].classes]
    tried = sorted(open_rows, key=lambda name: (found[name].samples < ENOUGH, found[name].samples))[:1]
    shown = {name: _demonstrated(clients[name], sent[name], task) for name in tried if found[name].samples <= MOST_ROWS}
    return [Disclosure(name, found[name], shown.get(name)) for name in names]


def _reply(method: Method, task: Task, client: Client, seed: int) -> Arrays:
    """What a client would send."""
    state = method.init_server(Server(task, 0, derive(seed, "server")))
    site = Site(task, client.train, 1, derive(seed, "update", client.name, 1))
    return method.update(method.init_client(site), method.message(state, client.name, "update"), site)[1]


def _sums(method: Method, task: Task, reply: Arrays) -> Moments:
    """The moments in a reply, or behind a thin one; refused where it is not the moments of the client's features."""
    reply = thin.as_moments(reply, task.outputs)
    if not Moments.are(reply) or len(reply["cross"]) not in (task.width, task.width + 1):
        raise ParameterError(
            f"disclose looks at methods whose clients send F'F and F'Y of their features: afl, fedhip and fedprior; "
            f"{method.name} sends {method.sends}"
        )
    return Moments.from_arrays(reply)


def _demonstrated(client: Client, moments: Moments, task: Task) -> Demonstration | None:
    guess: Guess | None = reconstruct(moments)
    if guess is None:
        return None
    rows = np.asarray(client.train.inputs, dtype=np.float64).reshape(len(client.train), -1)
    guess = replace(guess, rows=guess.rows[:, : rows.shape[1]])  # without the constant feature
    match = compare(rows, client.train.labels, guess)
    return Demonstration(rows, guess.rows[list(match.order)], match, _picture(task))


def _picture(task: Task) -> tuple[int, ...]:
    """The shape of a row as a picture: that of the inputs, or a square, as pixels in one row mostly are."""
    plain = task.features == maps.Identity() or str(task.features) == "unit"
    sides = tuple(side for side in task.inputs if side > 1)
    if not plain or task.feature_names:
        return ()
    side = round(task.width**0.5)
    return sides if len(sides) == 2 else (side, side) if len(sides) == 1 and side > 3 and side**2 == task.width else ()
