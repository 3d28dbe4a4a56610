"""What a site does with an invitation and with what comes back. Its data and its model stay with it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from threadpoolctl import threadpool_limits

from fedsolve import codec, digits
from fedsolve.arrays import Array, take
from fedsolve.data import catalog
from fedsolve.data.align import align
from fedsolve.data.federation import client_names
from fedsolve.data.large import large
from fedsolve.data.parts import Choice, Parquet
from fedsolve.data.reading import Reading
from fedsolve.data.samples import Samples
from fedsolve.data.task import Classes, Task
from fedsolve.errors import DataError, ParameterError, unknown
from fedsolve.features import maps
from fedsolve.features.cache import extract
from fedsolve.features.images import ANY_SIZE
from fedsolve.ledger import commitments
from fedsolve.ledger.contribution import Contribution, read_bytes
from fedsolve.ledger.terms import Terms, load_terms, reply
from fedsolve.ledger.validate import Census, examine
from fedsolve.method import Site
from fedsolve.model import Model
from fedsolve.privacy.disclose import Rules, report
from fedsolve.progress import Progress
from fedsolve.rng import derive

AS_USUAL = Reading()


@dataclass(frozen=True, slots=True, eq=False)
class SiteModel:
    """A site's own model, and whether its data are in the sum that it starts from."""

    model: Model
    counted: bool
    warnings: tuple[str, ...] = ()  # what not to trust, one sentence each


def contribute(
    invitation: Path,
    data: str,
    client: str,
    out: Path,
    *,
    features: str = "",
    progress: Progress | None = None,
    sequence: int | None = None,
    key: Path | None = None,
    reading: Reading = AS_USUAL,
    rules: Rules | None = None,
    stream: bool = False,
) -> Census:
    """Write the contribution of a client, from its data, for the federation that invited it.

    `reading` says which columns of its table are what, where they are not called as usual. With `rules`, sums that
    would disclose more of single records are refused before they are computed. A ledger takes a contribution where its
    `sequence` is above that of the client's before; by default it is the time. A ledger with keys takes it where it is
    signed with the private `key` in a file. With `stream`, Parquet is read in blocks, and need not fit into memory.
    """
    terms = load_terms(invitation, features)
    train = samples(data, terms.task, client, progress, reading, stream=stream)
    if rules is not None:
        _check_disclosure(train, terms, rules)
    with threadpool_limits(1, user_api="blas"):  # the same bits again when the site asks whether it is counted
        _, sent, _ = reply(terms.method, terms.task, terms.seed, terms.message, client, train)
    census = examine(terms, sent)
    contribution = Contribution.of(client, sent, sequence)
    (contribution.signed(terms, key) if key else contribution).save(out, terms)
    return census


def _check_disclosure(train: Samples, terms: Terms, rules: Rules) -> None:
    """Refuse a contribution from which single records could be told."""
    task = terms.task
    ones = terms.shape[0] > task.width
    broken = report(train, task.target, ones=ones, names=task.columns, rules=rules).refusals()
    if broken:
        raise DataError(
            f"nothing was written: the sums would disclose single records, {'; '.join(broken)}; `fedsolve disclose` "
            "says more, --policy FILE what the site allows, and --anyway writes them all the same"
        )


def personal(
    message: Path,
    data: str,
    client: str,
    *,
    contribution: Path | None = None,
    features: str = "",
    progress: Progress | None = None,
    reading: Reading = AS_USUAL,
    stream: bool = False,
) -> SiteModel:
    """A client's own model, from its data and the message that the ledger gives to everybody.

    Whether its data are in the sum is told by content: the message lists the digests of those who are in. Give the
    `contribution` that was sent, if it was made on another machine, where sums may differ in their last bits. A member
    of a cohort is told by its name, to which the message has a commitment: nobody knows its part of the sum.
    """
    arrays, texts = codec.read_file(message)
    if texts.get("made") != "message":
        raise DataError(f"{message} is not the message of a ledger; `fedsolve ledger solve` writes one")
    terms, arrays = Terms.read(arrays, texts, str(message), features), take("message", arrays)
    train = samples(data, terms.task, client, progress, reading, stream=stream)
    with threadpool_limits(1, user_api="blas"):
        before, sent, after = reply(terms.method, terms.task, terms.seed, terms.message, client, train)
        digests = {Contribution.of(client, sent).digest}
        if contribution is not None:
            digests.add(Contribution.read(read_bytes(contribution), terms, str(contribution)).digest)
        members = commitments.from_text(texts.get("commitments", ""), str(message))
        counted = bool(digests & set(texts["members"].split())) or any(each.is_to(client) for each in members)
        site = Site(terms.task, train, 1, derive(terms.seed, "personalize", client, 1), counted)
        own = terms.method.personalize(after if counted else before, arrays, site)
    told = digits.at_clients({client: own.unsure}, terms.task.columns)
    return SiteModel(Model(terms.method, terms.task, own.model, client), counted, told)


def task_of(data: str, features: str, progress: Progress | None = None, reading: Reading = AS_USUAL) -> Task:
    """The task that a table poses: classes, names, and the shape of its inputs."""
    table = catalog.load(data, progress=progress, reading=reading.for_features(features))
    feature_map = maps.parse(features)
    if table.raw == ANY_SIZE and feature_map == maps.Identity():
        raise DataError(f"the pictures of {data} need a feature map: name it with --features")
    feature_map.shape(table.raw)  # refuses inputs that the map does not take
    return replace(table.task, features=feature_map)


def stated_task(classes: int, inputs: str, features: str) -> Task:
    """A task from the number of classes and the shape of inputs as a text: "64", "28x28"."""
    try:
        shape = tuple(int(side) for side in inputs.split("x"))
        if not all(side > 0 for side in shape):
            raise ValueError
    except ValueError:
        raise ParameterError(f"inputs must be a shape, as in 64 or 28x28; got {inputs!r}") from None
    target, feature_map = Classes(classes), maps.parse(features)
    feature_map.shape(shape)  # refuses inputs that the map does not take
    return Task(target, shape, feature_map)


def samples(
    data: str,
    task: Task,
    client: str,
    progress: Progress | None = None,
    reading: Reading = AS_USUAL,
    *,
    stream: bool = False,
) -> Samples:
    """The features and labels of a site's data, in the federation's order of columns and classes.

    Where the data name the owner of each row, the client's own rows are taken.
    """
    if task.target.kind == "numbers" and not reading.label:
        reading = replace(reading, label=task.target.names)
    reading = reading.for_features(str(task.features))
    if stream:
        table = large(Parquet.of(data, progress), replace(reading, task=task.target.kind))
        own = table.aligned(task).with_features(task.features).samples(Choice(owner=client))
        if not len(own):
            raise DataError(f"{data}: no row is of client {client!r}; --owner names the column of owners")
        return own
    here = align(catalog.load(data, progress=progress, reading=reading), task, data)
    rows, labels = extract(task.features, here.inputs, progress), here.labels
    if here.client is not None:
        chosen = _rows_of(here.client, client)
        rows, labels = rows[chosen], labels[chosen]
    return Samples(rows, labels)


def _rows_of(owners: Array, client: str) -> Array:
    """Which rows a client owns; numbered owners are also known as client-00, client-01, ..."""
    rows_of = {str(value): owners == value for value in np.unique(owners)}
    if owners.dtype.kind in "iu":
        names = client_names(int(owners.max()) + 1)
        rows_of |= {names[int(value)]: owners == value for value in np.unique(owners) if value >= 0}
    if client not in rows_of:
        raise unknown("client", client, rows_of)
    rows: Array = rows_of[client]
    return rows
