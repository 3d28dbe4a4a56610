"""The server's part of boosting: heads and steps of blocks, each solved from the sum over those that answered."""

from __future__ import annotations

import numpy as np

from fedsolve.arrays import Array, Arrays, Float, under
from fedsolve.families.layered.boosting import Blockwise, is_open, solved
from fedsolve.families.ridge import choice, linear, standard, steps
from fedsolve.moments import Moments
from fedsolve.solver import freedom

LESS = 0.3  # of the ridge of least squared error, which is too much for the largest score to be the right one
_SUMS = ("triangle", "cross", "count", "ridge")
_LASTING = ("start/", "block/")


def asked(state: Arrays) -> dict[str, Array]:
    """What clients are sent before an update: the seeds, the blocks so far, and before a block the head it is for."""
    extra = ("probes", "intercept") if is_open(state) else ()  # the head's weight is the open block's
    return {name: state[name] for name in state if name in ("seeds", *extra) or name.startswith(_LASTING)}


def sums_of(state: Arrays) -> dict[str, Array]:
    """The sums behind the last head and its ridge, on which clients solve heads of their own."""
    return {name: state[name] for name in _SUMS if name in state}


def next_head(
    method: Blockwise, state: Arrays, total: Moments, ridge: float | str, probing: np.random.Generator | None
) -> dict[str, Array]:
    """The head of the states so far and, where it is not the last, what the next block starts from.

    `probing` draws what the ridge of a block is chosen by; there is none where that is a number.
    """
    number = solved(state)
    following = {name: state[name] for name in state if name == "seeds" or name.startswith((*_LASTING, "raw/"))}
    if number == 0 and method.start == "features":
        start, total = _start(total)
        following |= start
    strength = choice.server_ridge(ridge, total, intercept=True)
    head = linear.global_model(total, strength, intercept=True)
    following |= {**head, "ridge": np.array(strength), "rest": _rest(total, head, strength)}
    if number == method.blocks:
        return following
    origin, scale = standard.origin_and_scale(total)
    live = max(1, int(np.count_nonzero(scale)))  # so that a random combination has deviation 1
    block = {"weight": head["weight"], "origin": origin, "scale": scale / np.sqrt(live)}
    following |= under(f"block/{number}", block)
    if probing is not None:
        following["freedom"] = np.array(freedom(total, strength, intercept=True))
        following["probes"] = steps.probes(total, strength, probing)
    return following


def next_step(state: Arrays, total: Moments, block_ridge: float | str) -> dict[str, Array]:
    """The step of the open block. The head stays: it is what the step is for, and good until there is a new one."""
    weight, number = state["weight"], solved(state)
    classes = weight.shape[1]
    path = steps.StepPath.of(total.gram, total.cross[:, :classes], weight)
    share = block_ridge
    if isinstance(share, str):
        probed, used = total.cross[:, classes:], float(state["freedom"])
        share = LESS * path.cross_validated(total.count, state["rest"], used, probed)
    gone = {*_SUMS, "rest", "freedom", "probes"}  # of states that samples are no longer in
    following = {name: array for name, array in state.items() if name not in gone}
    return following | under(f"block/{number}", {"step": path.step(share), "ridge": np.array(share)})


def _rest(total: Moments, head: Arrays, ridge: float) -> Float:
    """What a head leaves over, R'R over the samples: Y'Y - W'X'Y - ridge W'W, where Y'Y are the counts of classes."""
    stacked, weight = np.vstack([head["weight"], head["intercept"]]), head["weight"]
    rest = np.diag(total.cross[-1]) - stacked.T @ total.cross - ridge * (weight.T @ weight)
    return np.asarray(rest / total.count)


def _start(total: Moments) -> tuple[dict[str, Array], Moments]:
    """Where all samples are moved to, at mean 0 and deviation 1, and their moments there: no round is needed for it.

    A feature that looks constant and is not is told of, with the sums that tell.
    """
    origin, scale = standard.origin_and_scale(total)
    start = under("start", {"origin": origin, "scale": scale})
    unsure = standard.hidden(total, scale)
    if len(unsure):
        start |= under("raw", {**total.arrays(), "unsure": unsure})
    return start, standard.standardised(total, origin, scale)
