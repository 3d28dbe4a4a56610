"""Groups of clients that train a network each: profiles, who is in which group, and the next layer of every group.

A state has "member/CLIENT", the number of each client's group, "centres", a row per group, and "model/NUMBER/...", the
network of each group, beside the layers that all have in common.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsolve.arrays import Array, Arrays, Float, accumulate, flat, take, under
from fedsolve.data.task import Task
from fedsolve.families.layered import forward, layers, targets
from fedsolve.families.layered.settings import Layerwise, next_layer
from fedsolve.method import Group, Site
from fedsolve.moments import Moments

RESTARTS = 10  # of K-means


def profile(reader: layers.Reader, message: Arrays, site: Site, *, by: str) -> Float:
    """What a client is grouped by: its "labels", as PFedACnnL (9) encodes them, or the mean of its "features"."""
    return _mean_input(reader, site) if by == "features" else _encoded_shares(reader, message, site)


def _encoded_shares(reader: layers.Reader, message: Arrays, site: Site) -> Float:
    """Label shares times the narrowest encoding; of numbers, the shares of their tenths."""
    task, columns = site.task, targets.columns(site.task.target)
    shares = constant_answer(targets.seen(task.target, site.train.labels), columns)
    hidden = [stage for stage in reader.stages(task)[:-1] if stage.layer.recipe is None]
    if not hidden:  # (8) has no encoding to choose from
        return shares
    number = min(range(len(hidden)), key=lambda place: hidden[place].width)
    encoded: Float = shares @ targets.encoding(int(message["seeds"][0]), number, columns, hidden[number].width)
    return encoded


def constant_answer(labels: NDArray[Any], classes: int) -> Float:
    """What a client knows before anything is trained: the shares of its labels, or the means of its numbers."""
    answer: Float = targets.counts(labels, classes) / len(labels)
    return answer


def _mean_input(reader: layers.Reader, site: Site) -> Float:
    """The mean of the inputs at the reader's scale, a block of samples at a time."""
    inputs, block = site.train.inputs, reader.block
    slices = [slice(start, start + block) for start in range(0, len(inputs), block)]
    parts = [flat(forward.prepare(inputs[rows], reader.scale)).sum(0) for rows in slices]
    mean: Float = np.sum(parts, axis=0) / len(inputs)
    return mean


def models(state: Arrays) -> dict[int, dict[str, Array]]:
    """The networks of the groups, by number."""
    numbers = sorted({int(name.split("/")[1]) for name in state if name.startswith("model/")})
    return {number: take(f"model/{number}", state) for number in numbers}


def group_of(state: Arrays, client: str) -> int:
    """The group of a client; the largest for one whose profile never arrived."""
    if f"member/{client}" in state:
        return int(state[f"member/{client}"])
    counts = np.bincount([int(group) for group in take("member", state).values()] or [0])
    return int(np.argmax(counts))


def sent(state: Arrays, client: str) -> dict[str, Array]:
    """The layers and the number of a client's group; nothing before there are groups."""
    networks = models(state)
    if not networks:
        return {}
    network = networks[group_of(state, client)]
    return {**layers.network_of(network), "group": network["group"]}


def grouped(profiles: Arrays, groups: int, rng: np.random.Generator) -> dict[str, Array]:
    """Who is in which group, and the centres: K-means on the profiles, in the order of names.

    Groups are numbered by their first member, so that numbers mean nothing.
    """
    from sklearn.cluster import KMeans  # takes a second to import

    names = sorted(name.rpartition("/")[0] for name in profiles)
    points = np.stack([profiles[f"{name}/profile"] for name in names])
    count = min(groups, len(np.unique(points, axis=0)))
    clustering = KMeans(count, n_init=RESTARTS, random_state=int(rng.integers(2**31))).fit(points)
    clusters = clustering.labels_.tolist()
    order = list(dict.fromkeys(clusters))
    members = {f"member/{name}": np.array(order.index(each)) for name, each in zip(names, clusters, strict=True)}
    numbers = {f"model/{number}/group": np.array(number) for number in range(len(order))}
    return {**members, **numbers, "centres": np.ascontiguousarray(clustering.cluster_centers_[order])}


def without(state: Arrays, silent: set[int], answered: set[int]) -> dict[str, Array]:
    """The state without groups of which nobody answered: their members join the group with the nearest centre."""
    remaining = {name: array for name, array in state.items() if not _belongs(name, silent)}
    for name in [name for name in remaining if name.startswith("member/") and int(remaining[name]) in silent]:
        centres = state["centres"]
        distances: Mapping[int, float] = {
            number: float(np.linalg.norm(centres[number] - centres[int(state[name])])) for number in sorted(answered)
        }
        remaining[name] = np.array(min(distances, key=lambda number: distances[number]))
    return remaining


def _belongs(name: str, groups: set[int]) -> bool:
    parts = name.split("/")
    return parts[0] == "model" and int(parts[1]) in groups


def grouping(state: Arrays, clients: Sequence[str]) -> dict[str, Group]:
    """The groups of these clients that have a layer, each with its network and the centre of its profiles."""
    members: dict[int, list[str]] = {}
    for client in clients:
        members.setdefault(group_of(state, client), []).append(client)
    networks = {number: layers.network_of({**state, **model}) for number, model in models(state).items()}
    return {
        str(number): Group(tuple(members[number]), model, state["centres"][number])
        for number, model in networks.items()
        if number in members and any(name.endswith("/weight") for name in model)
    }


def next_layers(method: Layerwise, state: Arrays, replies: Arrays, task: Task, *, pull: float) -> dict[str, Array]:
    """PFedACnnL (11): the next layer of each group from the sum over those that answered.

    The first layer with labels is drawn by `pull` towards that of all clients together, which 0 leaves out.
    """
    networks, common = models(state), layers.network_of(state)
    answered = {number for number in networks if f"{number}/count" in replies}
    following = without(state, set(networks) - answered, answered)
    sums = {number: take(str(number), replies) for number in sorted(answered)}
    depth = len(layers.layers(common))
    first = not any(layers.network_of(networks[number]) for number in answered)  # inputs are the same for all groups
    everybody = _everybody(method, common, sums.values(), task) if first and pull else {}
    for number, total in sums.items():
        if everybody:
            own = under(f"layer/{depth}", layers.drawn_layer(Moments.from_arrays(total), everybody, pull))
        else:
            network = next_layer(method, {**common, **networks[number]}, total, task)
            own = {name: array for name, array in network.items() if name not in common}
        following |= under(f"model/{number}", own)
    return following


def _everybody(method: Layerwise, common: Arrays, sums: Iterable[Arrays], task: Task) -> Arrays:
    """The layer of all clients together that the groups' are drawn towards; none where nobody answered."""
    total: dict[str, Array] | None = None
    for part in sums:
        total = accumulate(total, part)
    return layers.layers(next_layer(method, common, total, task))[-1] if total else {}
