"""fedprior of numbers: least squares drawn towards what everybody else knows."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import softmax

import fedsolve as fs
from fedsolve.families.ridge import choice, towards
from tests.conftest import relative
from tests.contexts import site

NAMES = ("a", "b")


def clients(
    sizes: tuple[int, ...], seed: int = 0, *, shift: float = 2.0, slopes: float = 0.7, features: int = 4
) -> dict[str, dict[str, tuple[np.ndarray, np.ndarray]]]:
    """Clients with intercepts and slopes of their own about everybody's, two numbers, features in odd units."""
    rng = np.random.default_rng(seed)
    weight, parts = rng.normal(size=(features, 2)), {}
    for number, size in enumerate(sizes):
        own = weight + slopes * rng.normal(size=weight.shape) / np.sqrt(features)
        x = rng.normal(size=(size + 200, features))
        y = np.array([30.0, -4.0]) + shift * rng.normal(size=2) + x @ own + rng.normal(size=(size + 200, 2))
        x = x * np.geomspace(1.0, 100.0, features) + 7.0
        parts[f"c{number:02d}"] = {"train": (x[:size], y[:size]), "test": (x[size:], y[size:])}
    return parts


def federation(*sizes: int, **terms: float) -> fs.Federation:
    return fs.Federation.from_arrays(clients(sizes, **terms), target=fs.Numbers(NAMES))  # type: ignore[arg-type]


def refitted(z: np.ndarray, r: np.ndarray, shift: float, slopes: float) -> tuple[np.ndarray, np.ndarray]:
    """Slopes and shift of least penalised squares, as one system of rows; 0 holds at the prior."""
    design = np.column_stack([np.sqrt(slopes) * z, np.full(len(z), np.sqrt(shift))])
    solved = np.linalg.solve(design.T @ design + np.eye(design.shape[1]), design.T @ r)
    return np.sqrt(slopes) * solved[:-1], np.sqrt(shift) * solved[-1]


@given(st.integers(0, 2**32), st.sampled_from([(3, 2), (9, 4), (12, 20)]))
def test_a_model_averages_candidates_by_refits_without_each_sample(seed: int, size: tuple[int, int]) -> None:
    rng = np.random.default_rng(seed)
    z, prior = rng.normal(size=size), towards.Line(rng.normal(size=(size[1], 2)), rng.normal(size=2))
    y = prior(z) + rng.normal(size=2) + rng.normal(size=(size[0], 2)) * [1.0, 10.0]
    rest, keep = y - prior(z), ~np.eye(len(z), dtype=bool)
    pairs = [(shift, slopes / size[1]) for shift in towards.SHIFTS for slopes in towards.SLOPES]
    fits, losses = [], []
    for pair in pairs:
        without = [refitted(z[k], rest[k], *pair) for k in keep]
        errors = [rest[i] - z[i] @ change - shift for i, (change, shift) in enumerate(without)]
        losses.append(np.square(errors).sum(0))
        fits.append(refitted(z, rest, *pair))
    beliefs = [(7.0 if shift == 0 else 1.0) * (7.0 if slopes == 0 else 1.0) for shift, slopes in pairs]
    weights = softmax(-0.5 * len(z) * np.log(losses) + np.log(beliefs)[:, None], axis=0)
    line, moved = towards.drawn(z, y, prior)
    assert relative(line.weight, prior.weight + sum(w * d for w, (d, _) in zip(weights, fits, strict=True))) < 1e-8
    wanted = prior.intercept + sum(w * a for w, (_, a) in zip(weights, fits, strict=True))
    assert relative(line.intercept, np.asarray(wanted)) < 1e-8
    shift, slopes = weights.mean(1) @ np.array(pairs)
    assert moved == pytest.approx({"shift": shift, "slopes": slopes})


@pytest.mark.parametrize("counted", [True, False])
def test_the_prior_is_the_least_squares_of_the_others(counted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """From their samples, at mean 0 and deviation 1 of everybody."""
    fed, seen = federation(20, 35, 15), []
    method = fs.FedPrior()
    state = fs.run(method, fed).state

    def drawn(rows: np.ndarray, targets: np.ndarray, prior: towards.Line) -> tuple[towards.Line, dict[str, float]]:
        seen.append((rows, prior))
        return prior, {}

    monkeypatch.setattr(towards, "drawn", drawn)
    train = fed.clients["c01"].train
    me = site(fed.task, train, counted=counted)
    model = method.personalize({}, method.message(state, "c01", "personalize"), me).model
    every = np.concatenate([client.train.inputs for client in fed.clients.values()])
    mine = [name for name in fed.clients if not counted or name != "c01"]
    x = np.concatenate([fed.clients[name].train.inputs for name in mine])
    y = np.concatenate([fed.clients[name].train.labels for name in mine])
    z, (rows, prior) = (x - every.mean(0)) / every.std(0), seen[0]
    np.testing.assert_allclose(rows, (train.inputs - every.mean(0)) / every.std(0), rtol=1e-8, atol=1e-9)
    centred, units = z - z.mean(0), (y - y.mean(0)) / y.std(0)
    gram = centred.T @ centred

    def hat(ridge: float) -> np.ndarray:
        return np.asarray(centred @ np.linalg.solve(gram + ridge * np.eye(4), centred.T))

    ridges = [factor * np.trace(gram) / 4 for factor in choice.SHARED_RIDGES]
    errors = [np.square(units - hat(r) @ units).sum() / (len(z) - 1 - np.trace(hat(r))) ** 2 for r in ridges]
    ridge = ridges[int(np.argmin(errors))]
    weight = np.linalg.solve(gram + ridge * np.eye(4), centred.T @ (y - y.mean(0)))
    assert relative(prior.weight, weight) < 1e-8
    assert relative(prior.intercept, y.mean(0) - z.mean(0) @ weight) < 1e-8
    predicted = method.predict(model, train.inputs, fed.task)
    np.testing.assert_allclose(predicted, y.mean(0) + (rows - z.mean(0)) @ weight, rtol=1e-8)
    if not counted:  # everybody's is the global model
        assert relative(state["weight"], weight / every.std(0)[:, None]) < 1e-8


def test_clients_with_intercepts_and_slopes_of_their_own_gain_from_others() -> None:
    fed = federation(*(12, 20, 40, 80) * 4, features=6, slopes=0.3)
    alike = federation(*(12, 20, 40, 80) * 4, features=6, shift=0.0, slopes=0.0)

    def error(method: fs.Method, data: fs.Federation = fed) -> float:
        found = fs.run(method, data, workers=1).metrics["rmse"].mean
        assert found is not None
        return found

    ours = error(fs.FedPrior())
    assert ours < 0.92 * error(fs.Local(intercept=True))
    assert ours < 0.5 * error(fs.AFL(ridge="auto", intercept=True))
    assert ours < 0.95 * error(fs.FedHiP(beta="auto", intercept=True))
    assert error(fs.FedPrior(), alike) < 1.03 * error(fs.AFL(ridge="auto", intercept=True), alike)


@pytest.mark.parametrize(("size", "most"), [(1, 1e-3), (2, 1e-3), (3, 0.4), (6, 0.4)])
def test_a_client_with_few_rows_stays_near_the_federation(size: int, most: float) -> None:
    """Clients are alike here: the distance between predictions is counted in deviations of the noise, which is 1."""
    gaps = []
    for seed in range(8):
        fed = federation(size, 300, seed=seed, shift=0.0, slopes=0.0)
        others = fs.run(fs.FedPrior(), federation_of(fed, "c01"))
        result = fs.run(fs.FedPrior(), fed)
        x = fed.clients["c01"].test.inputs
        assert others.shared is not None
        gap = result.models["c00"].predict(x) - others.shared.predict(x)
        gaps.append(np.square(gap).mean())
        if size < choice.TOO_FEW:
            assert result.clients["c00"].chosen == {"shift": 0.0, "slopes": 0.0}
    # Features are scaled by everybody's deviations, so the ridge of the others differs in its last part.
    assert np.sqrt(np.mean(gaps)) < most


def federation_of(fed: fs.Federation, *names: str) -> fs.Federation:
    parts = {
        name: {
            kind: (part.inputs, part.labels)
            for kind, part in (("train", fed.clients[name].train), ("test", fed.clients[name].test))
        }
        for name in names
    }
    return fs.Federation.from_arrays(parts, target=fs.Numbers(NAMES))


def test_a_client_that_is_the_federation_keeps_its_model() -> None:
    result = fs.run(fs.FedPrior(), federation(30))
    assert result.shared is not None
    x = federation(30).clients["c00"].test.inputs
    np.testing.assert_allclose(result.models["c00"].predict(x), result.shared.predict(x), rtol=1e-9)


def test_a_target_alone_has_the_model_that_it_has_among_others() -> None:
    """Apart from the ridge of the prior, which all targets share: here samples are enough for the least."""
    parts = clients((40, 400, 400))
    both = fs.run(fs.FedPrior(), fs.Federation.from_arrays(parts, target=fs.Numbers(NAMES)))
    one = {name: {kind: (x, y[:, :1]) for kind, (x, y) in part.items()} for name, part in parts.items()}
    alone = fs.run(fs.FedPrior(), fs.Federation.from_arrays(one, target=fs.Numbers("a")))
    x = parts["c00"]["test"][0]
    np.testing.assert_allclose(both.models["c00"].predict(x)[:, 0], alone.models["c00"].predict(x), rtol=1e-7)


def test_constant_features_and_samples_that_explain_themselves() -> None:
    """A constant column has no weight; a row so far out that it is all its own is not judged by."""
    parts = clients((25, 40, 30))
    for part in parts.values():
        for kind, (x, y) in part.items():
            part[kind] = (np.column_stack([x, np.full(len(x), 3.0)]), y)
    parts["c00"]["train"][0][4, 0] = 1e9
    result = fs.run(fs.FedPrior(), fs.Federation.from_arrays(parts, target=fs.Numbers(NAMES)))
    assert not result.warnings
    for name, model in result.models.items():
        assert np.isfinite(model.arrays["weight"]).all(), name
        assert not model.arrays["weight"][-1].any()


def test_a_feature_that_only_looks_constant_is_named() -> None:
    parts = clients((25, 40))
    for part in parts.values():
        for kind, (x, y) in part.items():
            part[kind] = (np.column_stack([x, 1e9 + y[:, 0]]), y)
    with pytest.warns(fs.PrecisionWarning, match="4"):
        fs.run(fs.FedPrior(), fs.Federation.from_arrays(parts, target=fs.Numbers(NAMES)))
