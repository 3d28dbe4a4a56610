"""DeepAFL against the same training on the pooled data, derived a second time: samples one by one, and Kronecker."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

import fedsolve as fs
from fedsolve.families.layered import boosting, heads, layers
from fedsolve.families.layered.boosting import Boosting
from fedsolve.families.ridge import standard, steps
from fedsolve.families.ridge.steps import StepPath
from fedsolve.methods.deepafl import DeepAFL
from fedsolve.rng import derive
from tests.conftest import relative
from tests.contexts import server, site
from tests.methods.oracles import stacked

CLASSES = 3
ACTIVATIONS: dict[str, Any] = {
    "relu": lambda z: z * (z > 0),
    "leaky": lambda z: z * np.where(z > 0, 1.0, 0.01),
    "tanh": np.tanh,
}
FIXED: dict[str, Any] = {"ridge": 2.0, "block_ridge": 0.05, "alpha": 0.0}


def samples(count: int = 90, features: int = 5, seed: int = 0) -> tuple[Any, Any]:
    """Classes that no linear model tells apart: rings, in columns of unlike sizes and offsets."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(count, features))
    y = np.digitize(np.linalg.norm(x[:, :2], axis=1), [0.9, 1.6])
    return 3.0 + x * 10.0 ** np.arange(-1, features - 1), y


def federation(x: Any, y: Any, clients: int, seed: int = 0) -> fs.Federation:
    order = np.random.default_rng(seed).permutation(len(y))
    parts = np.array_split(order, clients)
    return fs.Federation.from_arrays({f"c{i:02d}": {"train": (x[r], y[r])} for i, r in enumerate(parts)}, CLASSES)


def kronecker(f: Any, w: Any, rest: Any, lam: float) -> Any:
    """D of |rest - F D W|^2 + lam |D|^2 as one long least-squares problem: vec(F D W) = (W' x F) vec(D)."""
    design = np.kron(w.T, f)
    rows = np.vstack([design, np.sqrt(lam) * np.eye(design.shape[1])])
    targets = np.append(rest.ravel(order="F"), np.zeros(design.shape[1]))
    return np.linalg.lstsq(rows, targets, rcond=None)[0].reshape((f.shape[1], w.shape[0]), order="F")


def matrix(seed: int, width: int, size: int) -> Any:
    return derive(seed, "random projection", width, size).standard_normal((width, size))


class Slow:
    """The whole training on pooled rows. Settings must be numbers; nothing is taken from the library but draws."""

    def __init__(self, x: Any, y: Any, method: DeepAFL, seeds: Any) -> None:
        self.method, self.seeds, self.act = method, seeds, ACTIVATIONS[method.activation]
        self.mean, self.deviation = x.mean(0), x.std(0)
        self.steps: list[Any] = []
        self.heads: list[Any] = []
        self.norms: list[Any] = []
        states, targets = np.array([self.first(row) for row in x]), np.eye(CLASSES)[y]
        assert isinstance(method.ridge, float)
        assert isinstance(method.block_ridge, float)
        for number in range(method.blocks + 1):
            self.heads.append(stacked([(1.0, states, targets)], method.ridge, intercept=True))
            if number == method.blocks:
                break
            w, b = self.heads[-1][:-1], self.heads[-1][-1]
            self.norms.append((states.mean(0), states.std(0)))
            f = np.array([self.hidden(number, row) for row in states])
            rest = targets - states @ w - b
            lam = method.block_ridge * np.trace(f.T @ f) / f.shape[1] * np.trace(w.T @ w) / CLASSES
            self.steps.append(kronecker(f, w, rest, lam))
            states = states + f @ self.steps[-1]
        self.states = states

    def first(self, row: Any) -> Any:
        if self.method.start == "features":
            return (row - self.mean) / self.deviation
        return self.act((row / np.linalg.norm(row)) @ matrix(int(self.seeds[0]), len(row), self.method.width))

    def hidden(self, number: int, state: Any) -> Any:
        mean, deviation = self.norms[number]
        live = deviation > 0
        unit = np.where(live, (state - mean) / np.where(live, deviation, 1.0), 0.0) / np.sqrt(live.sum())
        row = np.append(unit, 0.5) / np.sqrt(1.25)  # the constant has half the deviation of the rest
        return self.act(row @ matrix(int(self.seeds[number + 1]), len(row), self.method.width))

    def scores(self, row: Any) -> Any:
        state = self.first(row)
        for number, step in enumerate(self.steps):
            state = state + self.hidden(number, state) @ step
        return np.append(state, 1.0) @ self.heads[-1]


@pytest.mark.parametrize("clients", [1, 4, 45])
@pytest.mark.parametrize(
    "method",
    [
        DeepAFL(width=7, blocks=2, activation="relu", **FIXED),
        DeepAFL(width=3, blocks=3, activation="tanh", ridge=0.0, block_ridge=2.0, alpha=0.0),
        DeepAFL(width=6, blocks=1, activation="leaky", start="random", **FIXED),
    ],
    ids=repr,
)
def test_every_block_and_head_is_that_of_the_pooled_data(method: DeepAFL, clients: int) -> None:
    x, y = samples()
    result = fs.run(method, federation(x, y, clients))
    slow = Slow(x, y, method, result.state["seeds"])
    for number, step in enumerate(slow.steps):
        block = {name: result.state[f"block/{number}/{name}"] for name in ("weight", "step")}
        assert relative(block["weight"], slow.heads[number][:-1]) < 1e-9
        assert relative(block["step"] @ block["weight"].T, step) < 1e-9
    fresh, _ = samples(30, seed=1)
    assert result.shared is not None
    assert relative(result.shared.scores(fresh), np.array([slow.scores(row) for row in fresh])) < 1e-9
    assert len(result.history) == method.rounds == 2 * method.blocks + 1


@given(st.integers(0, 2**32), st.integers(1, 60), st.sampled_from(["features", "random"]))
@hypothesis_settings(max_examples=15)
def test_any_split_gives_the_pooled_model(seed: int, clients: int, start: str) -> None:
    """With every choice left to the sums."""
    x, y = samples(120, seed=seed)
    method = DeepAFL(width=8, blocks=2, start=start, alpha=0.0)
    one, many = (fs.run(method, federation(x, y, count, seed)).shared for count in (1, clients))
    assert one is not None
    assert many is not None
    assert relative(many.scores(x), one.scores(x)) < 1e-9


# --- the step of a block


@pytest.mark.parametrize(("width", "size", "classes"), [(4, 6, 3), (6, 4, 2), (5, 3, 4)])
@pytest.mark.parametrize("share", [1e-6, 0.1, 10.0])
def test_a_step_is_the_minimiser(width: int, size: int, classes: int, share: float) -> None:
    rng = np.random.default_rng(width)
    f, w, rest = rng.normal(size=(20, width)), rng.normal(size=(size, classes)), rng.normal(size=(20, classes))
    lam = share * np.trace(f.T @ f) / width * np.trace(w.T @ w) / classes
    d = StepPath.of(f.T @ f, f.T @ rest, w).step(share) @ w.T
    np.testing.assert_allclose(d, kronecker(f, w, rest, lam), rtol=1e-6, atol=1e-9)
    gradient = f.T @ (f @ d @ w - rest) @ w.T + lam * d
    assert np.abs(gradient).max() < 1e-9 * np.abs(f.T @ rest @ w.T).max()

    def objective(d: Any) -> float:
        return float(np.square(rest - f @ d @ w).sum() + lam * np.square(d).sum())

    for _ in range(10):
        assert objective(d + 1e-3 * rng.normal(size=d.shape)) > objective(d)


def test_a_head_of_zeros_or_features_of_zeros_take_no_step() -> None:
    f, rest = np.ones((4, 3)), np.ones((4, 2))
    assert not StepPath.of(f.T @ f, f.T @ rest, np.zeros((5, 2))).step(0.1).any()
    assert not StepPath.of(np.zeros((3, 3)), np.zeros((3, 2)), np.ones((5, 2))).step(0.1).any()


def brute_force_share(x: Any, y: Any, f: Any, ridge: float) -> float:
    """Generalised cross-validation of head and block as one smoother, class direction by class direction."""
    n, ones = len(x), np.ones((len(x), 1))
    rows, penalty = np.hstack([x, ones]), ridge * np.diag([*np.ones(x.shape[1]), 0.0])
    hat = rows @ np.linalg.solve(rows.T @ rows + penalty, rows.T)
    w = np.linalg.solve(rows.T @ rows + penalty, rows.T @ y)[:-1]
    q, p = np.linalg.eigh(w.T @ w)
    errors = []
    for share in steps.SHARES:
        lam = share * np.trace(f.T @ f) / f.shape[1] * q.mean()
        error = 0.0
        for length, direction in zip(np.maximum(q, 0.0), p.T, strict=True):
            smooth = length * f @ np.linalg.solve(length * f.T @ f + lam * np.eye(f.shape[1]), f.T)
            both = hat + smooth @ (np.eye(n) - hat)
            error += float(np.square((np.eye(n) - both) @ y @ direction).sum()) / (n - np.trace(both)) ** 2
        errors.append(error)
    return steps.SHARES[int(np.argmin(errors))]


def test_the_ridge_of_a_block_is_that_of_least_cross_validation_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many probes as there are directions: then nothing is estimated. Choices must differ, or this says nothing."""
    monkeypatch.setattr(heads, "LESS", 1.0)
    chosen = []
    for seed in range(12):
        rng = np.random.default_rng(seed)
        y = rng.integers(CLASSES, size=60)
        curve = rng.uniform(0.0, 2.0) * (y == 1)
        x = rng.normal(size=(60, 4)) + rng.uniform(0.2, 2.0) * np.eye(CLASSES)[y] @ rng.normal(size=(CLASSES, 4))
        x[:, 0] *= 1.0 + curve
        method = DeepAFL(width=9, blocks=1, ridge=1.5, activation="tanh", alpha=0.0)
        state = fs.run(method, federation(x, y, 3, seed)).state
        slow = Slow(x, y, dataclasses.replace(method, block_ridge=1.0), state["seeds"])
        states = np.array([slow.first(row) for row in x])
        f = np.array([slow.hidden(0, row) for row in states])
        found = float(state["block/0/ridge"])
        assert found == pytest.approx(brute_force_share(states, np.eye(CLASSES)[y], f, 1.5))
        chosen.append(found)
    assert len(set(chosen)) > 3


@pytest.mark.parametrize("features", [6, 40])
def test_probes_stand_for_the_inverse(features: int) -> None:
    """Exactly where there are no more directions than probes, and on average where there are."""
    x = np.random.default_rng(0).normal(size=(80, features)) + 2.0
    total = fs.Moments.of(x, np.zeros(80, dtype=int), intercept=True)
    wanted = np.linalg.inv(total.gram + 3.0 * np.diag([*np.ones(features), 0.0]))
    draws = 1 if features < steps.PROBES else 800
    probes = [steps.probes(total, 3.0, derive(draw)) for draw in range(draws)]
    assert all(each.shape == (features + 1, min(steps.PROBES, features + 1)) for each in probes)
    found = np.mean([each @ each.T for each in probes], axis=0)
    assert relative(found, wanted) < (1e-9 if draws == 1 else 0.1)
    assert np.trace(found @ total.gram) == pytest.approx(
        np.trace(wanted @ total.gram), rel=1e-9 if draws == 1 else 0.02
    )


def test_without_a_ridge_to_choose_no_probes_are_sent() -> None:
    x, y = samples()
    sent = [fs.run(DeepAFL(width=8, blocks=2, block_ridge=r), federation(x, y, 3)).bytes_up for r in (0.1, "auto")]
    probes = min(steps.PROBES, x.shape[1] + 1)
    assert sent[1] - sent[0] == pytest.approx(3 * 2 * 8 * 8 * probes, rel=0.05)  # clients, blocks, width, bytes


def test_blocks_fit_what_a_linear_head_cannot() -> None:
    x, y = samples(400)
    fed, (fresh, truth) = federation(x, y, 5), samples(400, seed=1)
    results = [fs.run(DeepAFL(width=60, blocks=blocks, ridge=0.0, alpha=0.0), fed) for blocks in (1, 2, 4)]
    losses = [result.json()["server"]["loss"] for result in results]
    assert losses[0] > losses[1] > losses[2] > 0  # of the training samples, so each block must lower it
    deep, linear = results[-1].shared, fs.run(fs.AFL(intercept=True, ridge=0.0), fed).shared
    assert deep is not None
    assert linear is not None
    assert (deep.predict(fresh) == truth).mean() > (linear.predict(fresh) == truth).mean() + 0.25


# --- what a client keeps


def rounds_of(method: DeepAFL, fed: fs.Federation, *, forget: bool) -> list[Any]:
    """All replies of a federation of one client, whose memory is lost after every round or not."""
    (name, client), *_ = fed.clients.items()
    private: Any = {}
    here = server(fed.task)
    state, replies = method.init_server(here), list[Any]()
    for number in range(method.rounds):
        private, reply = method.update(
            {} if forget else private, method.message(state, name, "update"), site(fed.task, client.train)
        )
        replies.append(reply)
        state = method.aggregate(state, reply, server(fed.task, derive(number, "server")))
    end = method.personalize(
        {} if forget else private, method.message(state, name, "personalize"), site(fed.task, client.train)
    )
    return [*replies, end.model]


@pytest.mark.parametrize("start", ["features", "random"])
def test_memory_saves_work_and_changes_nothing(start: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fed = federation(*samples(), 1)
    counts = {}
    calls: list[int] = []
    plain = Boosting.features

    def counted(self: Boosting, arrays: Any, number: int, state: Any) -> Any:
        calls.append(number)
        return plain(self, arrays, number, state)

    monkeypatch.setattr(Boosting, "features", counted)
    found = {}
    for how, cache, forget in (("kept", 128.0, False), ("lost", 128.0, True), ("no room", 0.0, False)):
        calls.clear()
        found[how] = rounds_of(DeepAFL(width=6, blocks=3, start=start, cache=cache), fed, forget=forget)
        counts[how] = len(calls)
    # Each block is applied twice, for its sums and for the states behind it; without memory, again in all later rounds.
    assert counts == {"kept": 6, "lost": 3 + 9 + 3, "no room": 3 + 9 + 3}
    for how in ("lost", "no room"):
        for one, other in zip(found["kept"], found[how], strict=True):
            assert one.keys() == other.keys()
            assert all(np.allclose(one[name], other[name], rtol=1e-9, atol=1e-12) for name in one)


def test_memory_of_another_network_is_not_used() -> None:
    """Of other seeds, of another first round, of another block, or of blocks that are not solved yet."""
    fed = federation(*samples(), 1)
    method, train = DeepAFL(width=6, blocks=2), fed.clients["c00"].train
    state: Any = method.init_server(server(fed.task))
    messages = []
    for number in range(method.rounds):
        messages.append(method.message(state, "c00", "update"))
        _, reply = method.update({}, messages[-1], site(fed.task, train))
        state = method.aggregate(state, reply, server(fed.task, derive(number)))
    first, later = messages[1], messages[-1]
    ones = np.ones((len(train), 5))
    strange = [
        layers.keep(layers.Source(ones, 1), boosting.tag({**first, "seeds": first["seeds"] + 1}, 1)),
        layers.keep(layers.Source(ones, 1), boosting.tag({**first, "start/origin": first["start/origin"] + 1}, 1)),
        layers.keep(layers.Source(ones, 2), boosting.tag({**later, "block/0/step": later["block/0/step"] + 1}, 2)),
    ]
    ahead = layers.keep(layers.Source(ones, 3), boosting.tag(later, 3))
    for message, alien in [*((later, each) for each in strange), (first, ahead), (messages[2], ahead)]:
        one, other = (method.update(private, message, site(fed.task, train))[1] for private in ({}, alien))
        assert all(np.array_equal(one[name], other[name]) for name in one)
    used = layers.keep(layers.Source(ones, 3), boosting.tag(later, 3))  # and its own is
    assert not np.array_equal(method.update(used, later, site(fed.task, train))[1]["cross"], reply["cross"])


def test_rows_come_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    fed = federation(*samples(), 4)
    whole = fs.run(DeepAFL(width=6, blocks=2), fed)
    monkeypatch.setattr(boosting, "ROWS", 7)
    few = fs.run(DeepAFL(width=6, blocks=2), fed)
    x, _ = samples(20, seed=1)
    for name in fed.clients:
        assert relative(few.models[name].scores(x), whole.models[name].scores(x)) < 1e-9


# --- scale


@pytest.mark.parametrize(("unit", "offset"), [(1e-120, 0.0), (1e120, 0.0), (1.0, 1e4), (0.1, -50.0)])
def test_units_and_offsets_of_columns_change_nothing(unit: float, offset: float) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(80, 4)), rng.integers(CLASSES, size=80)
    units = unit ** np.arange(4) if 1e-9 < unit < 1e9 else np.full(4, unit)
    method = DeepAFL(width=9, blocks=2, alpha=0.0)
    plain, moved = (fs.run(method, federation(z, y, 3)).shared for z in (x, offset + units * x))
    assert plain is not None
    assert moved is not None
    assert relative(moved.scores(offset + units * x), plain.scores(x)) < 1e-5


def test_standardised_moments_are_those_of_standardised_rows() -> None:
    x, y = samples()
    x[:, 2] = 0.3
    total = fs.Moments.of(x, y, intercept=True)
    origin, scale = standard.origin_and_scale(total)
    assert np.flatnonzero(scale == 0).tolist() == [2]
    rows = np.column_stack([(x - x.mean(0)) / np.where(x.std(0) > 1e-9, x.std(0), np.inf), np.ones(len(x))])
    moved = standard.standardised(total, origin, scale)
    np.testing.assert_allclose(moved.gram, rows.T @ rows, atol=1e-9)
    np.testing.assert_allclose(moved.cross, rows.T @ np.eye(CLASSES)[y], atol=1e-9)
    assert moved.count == len(x)


def test_a_column_whose_digits_are_lost_is_named_and_a_constant_one_is_not() -> None:
    x, y = samples(200)
    x[:, 1] = 7.5
    fed = federation(x, y, 3)
    result = fs.run(DeepAFL(width=6, blocks=1), fed)
    assert not result.warnings
    x[:, 3] = 1.7e12 + y
    with pytest.warns(fs.PrecisionWarning, match="feature 3 were lost: its values lie around 1.7e"):
        fs.run(DeepAFL(width=6, blocks=1), federation(x, y, 3))


# --- heads of clients


@pytest.mark.parametrize("alpha", [0.5, 20.0])
def test_personal_heads_minimise_everybodys_error_and_alpha_times_their_own(alpha: float) -> None:
    x, y = samples()
    method = DeepAFL(width=7, blocks=2, activation="relu", ridge=2.0, block_ridge=0.05, alpha=alpha)
    fed = federation(x, y, 4)
    result = fs.run(method, fed)
    slow = Slow(x, y, method, result.state["seeds"])
    every = (1.0, slow.states, np.eye(CLASSES)[y])
    place = {tuple(row): state for row, state in zip(x, slow.states, strict=True)}
    for name, client in fed.clients.items():
        states = np.array([place[tuple(row)] for row in client.train.inputs])
        wanted = stacked([every, (alpha, states, np.eye(CLASSES)[client.train.labels])], 2.0, intercept=True)
        model = result.models[name].arrays
        assert relative(np.vstack([model["weight"], model["intercept"]]), wanted) < 1e-8
        assert result.clients[name].chosen == {"alpha": alpha}


def test_without_alpha_all_have_one_model_and_no_sums_are_sent_back() -> None:
    fed = federation(*samples(), 4)
    result = fs.run(DeepAFL(width=7, blocks=2, alpha=0.0), fed)
    assert result.shared is not None
    for model in result.models.values():
        assert model.arrays.keys() == result.shared.arrays.keys()
        assert all(np.array_equal(model.arrays[n], result.shared.arrays[n]) for n in model.arrays)
    assert result.bytes_down < fs.run(DeepAFL(width=7, blocks=2, alpha=1.0), fed).bytes_down


def test_auto_leans_to_itself_where_labels_are_swapped() -> None:
    x, y = samples(600)
    y = np.minimum(y, 1)
    clients = {f"plain-{i}": {"train": (x[i::8], y[i::8])} for i in range(7)}
    clients["odd"] = {"train": (x[7::8], 1 - y[7::8])}
    result = fs.run(DeepAFL(width=40, blocks=2), fs.Federation.from_arrays(clients, classes=2))
    assert result.clients["odd"].chosen["alpha"] > 5
    assert result.shared is not None
    own, shared = ((model.predict(x[7::8]) != y[7::8]).mean() for model in (result.models["odd"], result.shared))
    assert own > shared + 0.4


def test_a_client_that_answered_in_no_round_gets_the_blocks_of_the_others() -> None:
    fed = federation(*samples(), 5)
    method = DeepAFL(width=7, blocks=2)
    rest = dataclasses.replace(fed, clients={name: c for name, c in fed.clients.items() if name != "c02"})
    with_it, without = fs.run(method, fed, absent=["c02"]), fs.run(method, rest)
    for name in without.state:
        assert np.array_equal(with_it.state[name], without.state[name])


def test_what_there_is_before_the_last_head_predicts() -> None:
    """After a block the head is the one that the block was solved for: its error on training samples is no larger."""
    fed = federation(*samples(), 1)
    method, train = DeepAFL(width=30, blocks=1, block_ridge=1e-6), fed.clients["c00"].train
    targets, state, errors = np.eye(CLASSES)[train.labels], dict(method.init_server(server(fed.task))), []
    for number in range(method.rounds):
        _, reply = method.update({}, method.message(state, "c00", "update"), site(fed.task, train))
        state = dict(method.aggregate(state, reply, server(fed.task, derive(number))))
        model = method.personalize({}, method.message(state, "c00", "personalize"), site(fed.task, train)).model
        shared = method.shared(method.message(state, "c00", "personalize"))
        assert shared is not None
        errors.append(float(np.square(targets - method.predict(shared, train.inputs, fed.task)).sum()))
        assert np.isfinite(method.predict(model, train.inputs, fed.task)).all()
    assert errors[0] > 1.1 * errors[1] > errors[2]


@pytest.mark.parametrize("name", ["seeds", "weight", "start/origin", "block/0/step", "block/1/weight", "block/1/scale"])
def test_a_model_whose_arrays_do_not_fit_is_refused(name: str) -> None:
    x, y = samples()
    model = fs.run(DeepAFL(width=7, blocks=2), federation(x, y, 2)).shared
    assert model is not None
    spoilt = {**model.arrays, name: np.ones((2, *model.arrays[name].shape))}
    with pytest.raises(fs.DataError, match=f"'{name}' must have the shape"):
        model.method.predict(spoilt, x, model.task)
