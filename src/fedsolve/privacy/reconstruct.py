"""The rows of a site from its F'F and F'Y alone, where there are fewer of them than features and none is negative.

With n rows of rank n < m, F = Q G for an orthogonal Q and a G that F'F tells: G'G = F'F. Since G'(Q'Y) = F'Y, Q'Y is
known as well, so Q sends known vectors to the indicators of the classes: labels are exact, and what is left of Q is a
rotation within its other n - c directions. Rows without negative numbers leave few such rotations, often one. It is
found by turns: take negative numbers for positive ones, and the rotation that comes nearest.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from fedsolve.arrays import Float
from fedsolve.moments import Moments
from fedsolve.rng import derive

SOLVED = 1e-18  # share of the squares that is negative at which all is found
SPARSE = 0.2  # of the turns of every second start are towards few large numbers, which often begins well
LOOK = 50  # turns between two looks at what is negative
LIKE = 0.99  # cosine from which a row counts as recovered
MOST_ROWS = 150  # more take minutes, which a demonstration should not


@dataclass(frozen=True, eq=False)
class Guess:
    """Rows and labels, in some order."""

    rows: Float
    labels: NDArray[np.int64]
    negative: float  # share of the squares that is negative: next to nothing where the rows are right

    def __repr__(self) -> str:
        return f"Guess({len(self.rows)} rows, {self.negative:.1g} of them negative)"


@dataclass(frozen=True)
class Match:
    """How much of the truth a guess is."""

    alike: float  # share of the rows with a cosine above `LIKE`
    exact: float  # ... with every number right to a thousandth of the largest
    labels: float  # share of the labels that are right
    order: tuple[int, ...]  # which guess belongs to each true row


def reconstruct(moments: Moments, *, turns: int = 3000, starts: int = 6, seed: int = 0) -> Guess | None:
    """The best of some starts; None where class counts are not told by the sums, so that rows are not either."""
    values, vectors = np.linalg.eigh(moments.gram)
    kept = values > 1e-9 * values[-1]
    known = np.sqrt(values[kept])[:, None] * vectors[:, kept].T  # G
    turned = np.linalg.lstsq(known.T, moments.cross, rcond=None)[0]  # Q'Y
    counts = np.rint(np.square(turned).sum(0)).astype(np.int64)
    present = np.flatnonzero(counts)
    if counts.sum() != len(known) or len(known) != moments.count:
        return None
    labels = np.repeat(present, counts[present])
    classes = (labels[:, None] == present) / np.sqrt(counts[present])  # what Q sends the columns of `starts_at` to
    starts_at, _ = np.linalg.qr(turned[:, present] / np.sqrt(counts[present]))
    starts_at *= np.sign((starts_at * turned[:, present]).sum(0))
    base, rest, onto = classes @ (starts_at.T @ known), _beside(starts_at).T @ known, _beside(classes)
    best: Guess | None = None
    for start in range(starts):
        sparse = round(SPARSE * turns) * (start % 2)
        rows = _turned(base, rest, onto, turns, sparse, derive(seed, "reconstruct", start))
        guess = Guess(rows, labels, _negative(rows))
        best = guess if best is None or guess.negative < best.negative else best
        if best.negative < SOLVED:
            break
    return best


def _turned(base: Float, rest: Float, onto: Float, turns: int, sparse: int, rng: np.random.Generator) -> Float:
    """Base + onto R rest, for the rotation R that leaves least negative numbers, from a random one."""
    if not len(rest):
        return base
    rotation = np.linalg.qr(rng.normal(size=(len(rest), len(rest))))[0]
    rows = base + onto @ (rotation @ rest)
    for turn in range(turns):
        wanted = rows * np.abs(rows) if turn < sparse else np.abs(rows) - base
        left, _, right = np.linalg.svd(onto.T @ wanted @ rest.T, full_matrices=False)
        rows = base + onto @ (left @ right @ rest)
        if turn > sparse and turn % LOOK == 0 and _negative(rows) < SOLVED:
            break
    return rows


def _beside(columns: Float) -> Float:
    """An orthonormal basis of all directions that orthonormal columns leave."""
    return np.linalg.qr(columns, mode="complete")[0][:, columns.shape[1] :]


def _negative(rows: Float) -> float:
    return float(np.square(np.minimum(rows, 0.0)).sum() / np.square(rows).sum())


def compare(rows: Float, labels: NDArray[np.int64], guess: Guess) -> Match:
    """Each true row beside the guess that is most like it, every guess used once."""
    lengths = [np.maximum(np.linalg.norm(each, axis=1, keepdims=True), 1e-300) for each in (rows, guess.rows)]
    cosines = (rows / lengths[0]) @ (guess.rows / lengths[1]).T
    mine, theirs = linear_sum_assignment(-cosines)
    exact = np.abs(guess.rows[theirs] - rows).max(1) < 1e-3 * np.abs(rows).max()
    right = guess.labels[theirs] == labels
    alike = cosines[mine, theirs] > LIKE
    return Match(float(alike.mean()), float(exact.mean()), float(right.mean()), tuple(theirs.tolist()))
