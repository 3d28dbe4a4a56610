"""Numbers as targets: metrics, moments, splits and closed-form methods, against second derivations."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn import metrics as oracle

import fedsolve as fs
from fedsolve import metrics
from fedsolve.data.target import Numbers
from fedsolve.data.task import Task
from fedsolve.errors import DataError, FedsolveError, ParameterError
from fedsolve.features.maps import Identity
from fedsolve.solver import cross_validated_ridge


def drawn(rows: int, targets: int = 1, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, 6)) * [1, 2, 0.5, 3, 1, 1]
    y = 40 + x @ rng.normal(size=(6, targets)) * np.arange(1, targets + 1) + rng.normal(size=(rows, targets))
    return x, y


def federation(clients: int, targets: int = 1, rows: int = 200) -> fs.Federation:
    x, y = drawn(rows, targets)
    parts = {}
    for number in range(clients):
        mine = slice(number, None, clients)
        own_x, own_y = x[mine], y[mine]
        held = max(1, len(own_x) // 5)
        parts[f"c{number:03d}"] = {"train": (own_x[held:], own_y[held:]), "test": (own_x[:held], own_y[:held])}
    return fs.Federation.from_arrays(parts, target=Numbers(tuple(f"t{i}" for i in range(targets))))


@given(st.integers(1, 3), st.integers(2, 40), st.integers(0, 10_000), st.floats(-1e4, 1e4))
def test_figures_of_numbers_are_those_of_scikit_learn_however_they_are_split(
    targets: int, rows: int, seed: int, offset: float
) -> None:
    rng = np.random.default_rng(seed)
    truth = offset + rng.normal(size=(rows, targets))
    guess = truth + rng.normal(size=(rows, targets))
    cut = int(rng.integers(0, rows + 1))
    origin = truth.mean(0)
    parts = [metrics.numbers.tally(guess[part], truth[part], origin) for part in (slice(cut), slice(cut, None))]
    figures = metrics.figures(metrics.add(*parts))
    assert figures["rmse"] == pytest.approx(oracle.root_mean_squared_error(truth, guess), rel=1e-12)
    assert figures["mae"] == pytest.approx(oracle.mean_absolute_error(truth, guess), rel=1e-12)
    assert figures["r2"] == pytest.approx(oracle.r2_score(truth, guess), rel=1e-9, abs=1e-9)
    metrics.numbers.check(metrics.add(*parts), targets)


def test_a_tally_that_no_samples_have_is_refused() -> None:
    good = metrics.numbers.tally([[1.0], [2.0]], [[2.0], [4.0]])
    wrong = {
        "layout": {**good, "squares": np.zeros(2)},
        "sizes below zero": {**good, "sizes": np.array([-3.0])},
        "squares below what sizes allow": {**good, "squares": np.array([0.1])},
        "spread below what sums allow": {**good, "spread": np.array([1.0])},
        "no samples": {**good, "count": np.array(0)},
        "too many": {**good, "count": np.array(2**50)},
    }
    metrics.numbers.check(good, 1)
    for tally in wrong.values():
        with pytest.raises(DataError):
            metrics.numbers.check(tally, 1)


def test_constant_targets_have_no_r2() -> None:
    figures = metrics.figures(metrics.numbers.tally([[1.0], [2.0]], [[3.0], [3.0]], [3.0]))
    assert set(figures) == {"rmse", "mae"}


@pytest.mark.parametrize("clients", [1, 2, 7, 40])
@pytest.mark.parametrize("targets", [1, 3])
def test_afl_on_numbers_is_least_squares_on_the_pooled_table(clients: int, targets: int) -> None:
    fed = federation(clients, targets)
    x = np.vstack([client.train.inputs for client in fed.clients.values()])
    y = np.vstack([client.train.labels for client in fed.clients.values()])
    result = fs.run(fs.AFL(ridge=0.0), fed)
    design = np.column_stack([x, np.ones(len(x))])
    direct = np.linalg.lstsq(design, y, rcond=None)[0]
    assert result.shared is not None
    assert np.abs(result.shared.scores(x) - design @ direct).max() < 1e-9
    assert result.state["squares"] == pytest.approx(np.square(y).sum(0), rel=1e-12)


def test_fedhip_on_numbers_minimises_its_objective() -> None:
    fed = federation(4)
    result = fs.run(fs.FedHiP(alpha=3.0, beta=2.0, intercept=True), fed)
    everyone = [(c.train.inputs, c.train.labels) for c in fed.clients.values()]
    own_x, own_y = everyone[1]
    x = np.vstack([*(part for part, _ in everyone), np.sqrt(3.0) * own_x])
    ones = np.concatenate([np.ones(sum(len(part) for part, _ in everyone)), np.full(len(own_x), np.sqrt(3.0))])
    y = np.vstack([*(part for _, part in everyone), np.sqrt(3.0) * own_y])
    design = np.column_stack([x, ones])
    ridge = np.diag([2.0] * 6 + [0.0])
    direct = np.linalg.solve(design.T @ design + ridge, design.T @ y)
    model = result.models["c001"].arrays
    assert np.abs(model["weight"] - direct[:-1]).max() < 1e-9
    assert np.abs(model["intercept"] - direct[-1]).max() < 1e-8
    assert "sharpness" not in model


def test_auto_is_chosen_by_squared_error_and_units_decide_nothing() -> None:
    fed = federation(4, targets=2, rows=60)
    chosen = [fs.run(fs.FedHiP(intercept=True, beta="auto"), fed)]
    scaled = {
        name: {"train": (c.train.inputs, c.train.labels * [1e3, 1e-3]), "test": (c.test.inputs, c.test.labels)}
        for name, c in fed.clients.items()
    }
    other = fs.Federation.from_arrays(scaled, target=Numbers(("t0", "t1")))
    chosen.append(fs.run(fs.FedHiP(intercept=True, beta="auto"), other))
    alphas = [{name: client.chosen["alpha"] for name, client in result.clients.items()} for result in chosen]
    assert alphas[0] == alphas[1]
    assert chosen[0].state["beta"] == pytest.approx(chosen[1].state["beta"])


def test_the_ridge_by_cross_validation_is_that_of_the_rows() -> None:
    x, y = drawn(50, 2)
    moments = fs.Moments.of(x, y, intercept=True, squares=True)
    factors = [10.0**-power for power in range(6)]
    ridge = cross_validated_ridge(moments, factors, intercept=True)
    centred, rest = x - x.mean(0), (y - y.mean(0)) / y.std(0)
    unit = np.square(centred).sum() / x.shape[1]

    def error(strength: float) -> float:
        hat = centred @ np.linalg.solve(centred.T @ centred + strength * np.eye(6), centred.T)
        return float(np.square(rest - hat @ rest).sum() / (len(x) - 1 - np.trace(hat)) ** 2)

    assert ridge == pytest.approx(min((unit * factor for factor in factors), key=error))


def test_moments_with_squares_are_a_monoid_and_refuse_to_mix() -> None:
    x, y = drawn(30, 2)
    whole = fs.Moments.of(x, y, squares=True)
    parts = fs.Moments.of(x[:10], y[:10], squares=True) + fs.Moments.of(x[10:], y[10:], squares=True)
    rest = whole - fs.Moments.of(x[:10], y[:10], squares=True)
    assert whole.squares is not None and parts.squares is not None and rest.squares is not None
    assert parts.squares == pytest.approx(whole.squares)
    assert rest.squares == pytest.approx(np.square(y[10:]).sum(0))
    assert whole.scaled(2.0).squares == pytest.approx(2 * whole.squares)
    with pytest.raises(DataError, match="squares"):
        whole + fs.Moments.of(x, y)
    empty = fs.Moments.of(x[:0], y[:0], squares=True)
    assert (whole + empty).squares == pytest.approx(whole.squares)


def test_origin_and_scale_are_the_same_bits_for_every_split() -> None:
    targets = [federation(clients).task.target for clients in (1,)]
    x, y = drawn(200)
    for cuts in ([50], [3, 90, 91], list(range(1, 200))):
        parts = np.split(y, cuts)
        assert Numbers("t").fitted(parts) == Numbers("t").fitted([y])
    fitted = Numbers("t").fitted([y])
    assert fitted.origin == pytest.approx(y.mean(0)) and fitted.scale == pytest.approx(y.std(0))
    assert np.allclose(fitted.of_standard(fitted.standard(y)), y)
    assert isinstance(targets[0], Numbers) and len(x) == 200


def test_a_task_of_numbers_survives_its_text_and_strangers_are_refused() -> None:
    task = Task(Numbers(("a", "b"), (1.0, 2.0), (3.0, 4.0)), (5,))
    assert Task.from_text(task.to_text(), Identity()) == task
    for words in ('"origin": [1.0]', '"scale": [0.0, 1.0]', '"origin": ["x", 1]', '"names": [1, 2]', '"names": []'):
        text = task.to_text().replace('"origin": [1.0, 2.0]', words if "origin" in words else '"origin": [1.0, 2.0]')
        text = text.replace('"scale": [3.0, 4.0]', words if "scale" in words else '"scale": [3.0, 4.0]')
        text = text.replace('"names": ["a", "b"]', words if "names" in words else '"names": ["a", "b"]')
        with pytest.raises(FedsolveError):
            Task.from_text(text)


def test_splits_by_labels_go_by_tenths() -> None:
    x, y = drawn(400)
    table = fs.Table.make("numbers", x, y, target=Numbers("t"))
    fed = table.split("dirichlet:0.1", clients=5, seed=1)
    means = [float(client.train.labels.mean()) for client in fed.clients.values()]
    even = table.split("iid", clients=5, seed=1)
    assert np.std(means) > 3 * np.std([float(client.train.labels.mean()) for client in even.clients.values()])
    official = fs.Table.make("numbers", x, y, target=Numbers("t"), test=drawn(100, seed=0))
    dealt = official.split("dirichlet:0.1", clients=5, seed=1, test="official")
    assert sum(len(client.test) for client in dealt.clients.values()) == 100


def test_what_cannot_be_is_refused_by_name() -> None:
    x, y = drawn(20)
    with pytest.raises(DataError, match="finite"):
        fs.Table.make("t", x, np.where(y > 40, np.nan, y), target=Numbers("t"))
    with pytest.raises(DataError, match="equal"):
        fs.Table.make("t", x, np.ones((20, 1)), target=Numbers("t")).split("iid", clients=2)
    with pytest.raises(ParameterError, match="no probabilities"):
        fs.run(fs.AFL(ridge=0.0), federation(2)).models["c000"].predict_proba(x)
    with pytest.raises(ParameterError, match="learns classes"):
        fs.run(fs.FedProto(rounds=1), federation(2))


def test_a_model_of_numbers_is_saved_and_predicts_in_its_units(tmp_path) -> None:  # type: ignore[no-untyped-def]
    fed = federation(3, targets=2)
    result = fs.run(fs.FedHiP(intercept=True), fed)
    loaded = fs.Result.load(result.save(tmp_path / "run"))
    x, y = drawn(200, 2)
    assert loaded.metrics == result.metrics and loaded.task["kind"] == "numbers"
    assert np.array_equal(loaded.models["c001"].predict(x), result.models["c001"].predict(x))
    assert np.abs(loaded.models["c001"].predict(x) - y).std() < y.std()
    one = fs.run(fs.AFL(ridge=0.0), federation(3)).shared
    assert one is not None and one.predict(x).shape == (200,)
