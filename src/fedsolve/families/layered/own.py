"""A network of a client's own: every layer solved anew on its data, drawn towards the same layer of its group.

pFedACnnL (13): with M the group's layer, W = argmin |Y - X W|^2 + epsilon |W - M|^2. Each layer is fitted behind those
of the client, and leave-one-out chooses epsilon where nobody else does.
"""

from __future__ import annotations

import numpy as np

from fedsolve.arrays import Array, Arrays, Float, under
from fedsolve.families.layered import forward, layers, targets
from fedsolve.families.layered.stages import Stage
from fedsolve.families.ridge import calibration, choice, linear
from fedsolve.method import Site
from fedsolve.moments import Moments
from fedsolve.solver import RidgePath, left_out, solution_of

EPSILONS = (1e6, *(10.0 ** (power / 2) for power in range(8, -9, -1)))  # times the mean square: what auto chooses from


def own_network(
    reader: layers.Reader, private: Arrays, message: Arrays, site: Site, *, epsilon: float | str, budget: float
) -> tuple[dict[str, Array], dict[str, float]]:
    """The client's network from a group's that is complete, and the epsilon of each layer; `budget` as `layers.moved`.

    `message` has the group's number and network, `private` what the client kept of its last update.
    """
    model: dict[str, Array] = {"seeds": message["seeds"]}
    stages = reader.stages(site.task)
    # What is kept of the update is behind the group's layers: of use as long as these are the client's, too.
    source = layers.restore(private, site.train, int(message["group"]), int(reader.network.patches))
    chosen = {}
    for number, layer in enumerate(layers.layers(message)):
        source = layers.moved(reader, stages, model, source, max(number, source.depth), budget)
        if _stays(reader, stages[number], epsilon, numbers=site.task.target.kind == "numbers"):
            model |= under(f"layer/{number}", layer)
            continue
        own_layer, used = _own_layer(reader, stages, model, source, layer, site, epsilon)
        model |= under(f"layer/{number}", own_layer)
        chosen[f"layer/{number}/epsilon"] = used
    return model, chosen


def _stays(reader: layers.Reader, stage: Stage, epsilon: float | str, *, numbers: bool) -> bool:
    """Whether a layer is the group's for every client.

    A code of its own at each place cannot be judged by left-out labels, nor tenths by numbers; and whoever moves a
    hidden layer moves the inputs that the group's next layer was fitted to.
    """
    unjudged = reader.coded(stage) or (numbers and not stage.last)
    return stage.layer.recipe is not None or (isinstance(epsilon, str) and unjudged)


def _own_layer(
    reader: layers.Reader,
    stages: tuple[Stage, ...],
    model: Arrays,
    source: layers.Source,
    group: Arrays,
    site: Site,
    epsilon: float | str,
) -> tuple[dict[str, Array], float]:
    """PFedACnnL (13) for one layer, from the group's, and the epsilon that was used."""
    depth, prior = len(layers.layers(model)), forward.stacked(group)
    labels = targets.seen(site.task.target, site.train.labels, hidden=not stages[depth].last)
    own_moments = layers.statistics(reader, stages, model, source, labels, depth)
    # W = M + (X'X + epsilon I)^-1 X'(Y - X M)
    rest = Moments(own_moments.triangle, own_moments.cross - own_moments.gram @ prior, own_moments.samples)
    sharpness, constant = float(group.get("sharpness", 1.0)), reader.constant
    if isinstance(epsilon, str):
        blocks = layers.blocks(reader, stages, model, source, depth)
        stage = stages[depth]
        rows = np.concatenate([forward.mean_rows(stage, values, constant=constant) for _, values in blocks])
        epsilon, sharpness = choose_epsilon(rest, rows, stage.positions, prior, labels, sharpness)
    layer = forward.unstacked(prior + solution_of(rest, epsilon, solver="auto").weights, constant=constant)
    return {**layer, **({"sharpness": np.array(sharpness)} if "sharpness" in group else {})}, epsilon


def choose_epsilon(
    rest: Moments, rows: Float, places: int, prior: Float, labels: Array, sharpness: float
) -> tuple[float, float]:
    """The epsilon with the best predictions for samples that are left out, from one decomposition; their sharpness.

    `rest` holds X'X and X'(Y - X M), `rows` the mean row of each sample. A dense layer has one row per sample, and
    leave-one-out is exact. An image has `places` rows that must be left out together: their part in the fit is taken
    as `places` times that of their mean, which is exact where the patches of an image are alike and else too small.
    `labels` are class numbers, or rows of numbers, which have no sharpness.
    """
    wanted = labels if labels.ndim == 2 else linear.one_hot(labels, prior.shape[1])
    start = rows @ prior
    unit = float(rest.diagonal().mean()) or 1.0
    candidates: list[float] = [unit * factor for factor in EPSILONS]
    if places == 1:
        path = RidgePath.of(rows, wanted - start)
    else:
        squares, vectors = np.linalg.eigh(rest.gram)
        nonzero = squares > np.finfo(np.float64).eps * max(len(squares), np.sqrt(rest.count)) * squares[-1]
        squares, vectors = squares[nonzero], vectors[:, nonzero] / np.sqrt(squares[nonzero])
        root = np.sqrt(places)
        path = RidgePath(root * (rows @ vectors), squares, root * (wanted - start), vectors.T @ rest.cross, 0.0)

    def predicted(epsilon: float) -> Float:
        gain = path.ridge(epsilon)
        scores: Float = start + left_out(path.targets, path.fitted(gain), path.leverage(gain)) / np.sqrt(places)
        return scores

    epsilon = choice.best(candidates, map(predicted, candidates), labels)
    return epsilon, calibration.sharpness(predicted(epsilon), labels, sharpness) if labels.ndim == 1 else 0.0
