"""Runs with noise: who adds it, what goes out beside it, what is refused, and what the result says."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedsolve as fs
from fedsolve.arrays import Arrays, take
from fedsolve.codec import decode
from fedsolve.data.federation import Federation
from fedsolve.errors import DataError, ParameterError
from fedsolve.features import maps
from fedsolve.method import Method
from fedsolve.methods import CATALOGUE
from fedsolve.moments import Moments
from fedsolve.privacy import noise as noises
from fedsolve.privacy.gaussian import Source
from fedsolve.runtime.drive import drive
from fedsolve.runtime.gather import Plain
from fedsolve.runtime.inprocess import InProcess

NOISY = (fs.AFL(), fs.AFL(intercept=False), fs.FedHiP(), fs.FedPrior(), fs.APFL(d_primary=64, d_refine=64))


@pytest.fixture(scope="module")
def digits() -> Federation:
    return fs.load("digits").with_features(maps.parse("unit")).split(fs.dirichlet(0.5), clients=6, seed=0)


@pytest.fixture(scope="module")
def numbers() -> Federation:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(3000, 5))
    y = np.clip(x @ rng.normal(size=(5, 2)) + 0.1 * rng.normal(size=(3000, 2)), -5, 5)
    target = fs.Numbers(("a", "b"))
    table = fs.Table("made", x, y, target, client=rng.integers(5, size=3000)).with_features(maps.parse("clip:3"))
    return table.split("by-client", seed=0)


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Noise of variance next to nothing, where the laws of the rest are looked at."""

    def none(s: int, count: int, source: Source) -> np.ndarray:
        return np.zeros(count, dtype=np.int64)

    monkeypatch.setattr(noises, "discrete_gaussian", none)
    monkeypatch.setattr(noises, "RIDGE", 0.0)


@pytest.mark.parametrize("by", ["sites", "server"])
@pytest.mark.parametrize("method", NOISY, ids=lambda method: f"{method.name}")
def test_without_its_draws_a_noisy_run_is_the_plain_one(
    method: Method, by: str, digits: Federation, silent: None
) -> None:
    plain, noisy = fs.run(method, digits), fs.run(method, digits, noise=fs.Noise(1.0, by=by))
    assert noisy.shared is not None
    assert plain.shared is not None
    for name, array in plain.shared.arrays.items():
        np.testing.assert_allclose(noisy.shared.arrays[name], array, rtol=1e-3, atol=1e-3)
    assert noisy.accuracy.mean == pytest.approx(plain.accuracy.mean, abs=0.02)


@pytest.mark.parametrize("method", NOISY, ids=lambda method: f"{method.name}")
def test_with_much_epsilon_a_run_is_nearly_as_good_as_without_noise(method: Method, digits: Federation) -> None:
    plain, noisy = fs.run(method, digits), fs.run(method, digits, noise=fs.Noise(50.0, by="server"))
    assert (noisy.accuracy.mean or 0.0) > (plain.accuracy.mean or 1.0) - 0.06


@pytest.mark.parametrize("by", ["sites", "server"])
@pytest.mark.parametrize("epsilon", [0.1, 1.0])
@pytest.mark.parametrize("method", NOISY, ids=lambda method: f"{method.name}")
def test_with_little_epsilon_a_run_ends_in_models_or_in_a_sentence(
    method: Method, epsilon: float, by: str, digits: Federation
) -> None:
    """Sums that a client's own part is not contained in any more must not bring a personal model down."""
    try:
        result = fs.run(method, digits, noise=fs.Noise(epsilon, by=by))
    except DataError as error:
        assert "drowns the sums" in str(error)
    else:
        assert len(result.models) == 6
        assert result.accuracy.mean is not None


@pytest.mark.parametrize("method", [fs.AFL(), fs.FedHiP(), fs.FedPrior(), fs.APFL(d_primary=64, d_refine=64)])
@pytest.mark.parametrize("epsilon", [0.5, 8.0])
def test_numbers_are_learnt_under_noise(method: Method, epsilon: float, numbers: Federation) -> None:
    result = fs.run(method, numbers, noise=fs.Noise(epsilon, by="server", target_bound=5.0))
    assert result.metrics["rmse"].mean is not None
    if epsilon == 8.0 and method.name != "apfl":
        assert result.metrics["r2"].mean is not None
        assert result.metrics["r2"].mean > 0.5


def test_personal_models_bear_noise_better_than_the_global_one(digits: Federation) -> None:
    result = fs.run(fs.FedHiP(), digits, noise=fs.Noise(0.5, by="server"))
    personal, shared = result.accuracy.mean, result.spread("shared").mean
    assert personal is not None
    assert shared is not None
    assert personal > shared + 0.05


class Overheard(InProcess):
    """A transport that keeps what it carries."""

    def __init__(self, *values: Any, **named: Any) -> None:
        super().__init__(*values, **named)
        self.heard: list[Arrays] = []

    def _handle(self, name: str, request: Any) -> Any:
        answer = super()._handle(name, request)
        self.heard.append(decode(answer, "an answer"))
        return answer


def overheard(federation: Federation, noise: fs.Noise) -> list[Arrays]:
    transport = Overheard(fs.FedHiP(), federation, noise=noise)
    drive(fs.FedHiP(), federation.task, transport, noise=noise)
    return transport.heard


def test_what_sites_send_is_noisy_where_they_add_it_and_exact_where_the_server_does(digits: Federation) -> None:
    exact = [each.arrays() for each in _exact(digits)]
    for by, near in (("sites", False), ("server", True)):
        sent = [each for each in overheard(digits, fs.Noise(1.0, by=by)) if "triangle" in each]
        assert len(sent) == 6
        for arrays in sent:
            close = [np.allclose(arrays["triangle"], one["triangle"], atol=1e-6) for one in exact]
            assert any(close) == near


def _exact(federation: Federation) -> Iterable[Moments]:
    for client in federation.clients.values():
        yield Moments.of(client.train.inputs, client.train.labels, classes=federation.task.classes, intercept=True)


def test_nothing_that_was_chosen_or_counted_on_training_samples_goes_out_beside_it(digits: Federation) -> None:
    tallies = [each for each in overheard(digits, fs.Noise(1.0)) if "test" in each]
    assert len(tallies) == 6
    for tally in tallies:
        assert int(tally["train"]) == 0
        assert not take("chosen", tally)
        assert "unsure" not in tally


def test_two_runs_have_noise_of_their_own_whatever_the_seed(digits: Federation) -> None:
    states = [fs.run(fs.AFL(), digits, seed=0, noise=fs.Noise(1.0)).state["cross"] for _ in range(2)]
    assert not np.array_equal(states[0], states[1])


@pytest.mark.parametrize("name", sorted(set(CATALOGUE) - {"afl", "fedhip", "fedprior", "apfl"}))
def test_other_methods_are_refused_by_name_before_any_client_is_asked(name: str, digits: Federation) -> None:
    method = fs.create(name)
    with pytest.raises(ParameterError, match=f"afl, fedhip, fedprior and apfl; {name} sends"):
        method.rows({}, digits.task)


def refuse(federation: Federation, noise: fs.Noise, words: str, method: Method | None = None) -> None:
    with pytest.raises((ParameterError, DataError), match=words):
        fs.run(method or fs.AFL(), federation, noise=noise)


def test_what_is_refused(digits: Federation, numbers: Federation) -> None:
    refuse(fs.load("digits").split(fs.iid(), clients=3), fs.Noise(1.0), "'identity' does not bound them")
    refuse(numbers, fs.Noise(1.0), "targets of bounded length; a, b may be any number")
    refuse(digits, fs.Noise(1.0, target_bound=1.0), "target_bound is for targets that are numbers")
    refuse(digits, fs.Noise(1.0, honest=2), "hides nothing where the server sees")
    refuse(digits, fs.Noise(1.0), "glm sends", fs.GLM())
    refuse(digits, 1.0, r"noise takes fs.Noise\(epsilon=1.0\); got 1.0")  # type: ignore[arg-type]


def test_rows_that_are_not_those_of_their_map_are_refused(digits: Federation) -> None:
    """A defect that is planted: features that were scaled behind the map."""
    name, client = next(iter(digits.clients.items()))
    longer = replace(client, train=fs.Samples(1.01 * client.train.inputs, client.train.labels))
    refuse(replace(digits, clients={**digits.clients, name: longer}), fs.Noise(1.0), "and one is 1.01 long")


def test_shares_of_noise_add_up_under_a_gathering_that_hides_the_parts(digits: Federation) -> None:
    """Six sites that share it by three: twice the variance, and the same promise by any three of them."""
    noise = fs.Noise(1.0, honest=3)
    result = fs.run(fs.AFL(intercept=False), digits, noise=noise, gathering=Plain())
    assert result.privacy["honest"] == 3
    assert result.privacy["colluding"] == 3
    assert result.privacy["trusted"] == "a secure sum"
    with pytest.raises(DataError, match="2 sites answered, and 3 must share the noise"):
        absent = sorted(digits.clients)[:4]
        fs.run(fs.AFL(), digits, noise=noise, gathering=Plain(), absent=absent)


def test_a_result_says_what_is_promised(digits: Federation, tmp_path: Path) -> None:
    result = fs.run(fs.AFL(), digits, noise=fs.Noise(1.0, by="server"))
    told = fs.Result.load(result.save(tmp_path / "run")).privacy
    assert told == result.privacy
    assert (told["epsilon"], told["delta"], told["level"]) == (1.0, 1e-5, "record")
    assert (told["neighbours"], told["by"], told["trusted"]) == ("one record more or less", "server", "the server")
    assert told["membership_auc"] == pytest.approx(0.575, abs=1e-3)
    assert told["secure"] is False
    assert "figures on test samples" in told["not_covered"]
    assert {name: client.train for name, client in result.clients.items()} == {
        name: len(client.train) for name, client in digits.clients.items()
    }
    assert fs.run(fs.AFL(), digits).privacy == {"secure": False, "quorum": None, "epsilon": None}


def test_numbers_of_exact_sums_are_said_not_to_be_covered(numbers: Federation) -> None:
    """A map that was fitted, and the units of targets, which are part of the task."""
    fitted = replace(numbers.task, features=maps.parse("standardise:0.0/1.0+clip:3"))
    told = [fs.Noise(1.0).told(clients=3, task=task)["not_covered"] for task in (numbers.task, fitted)]
    assert not any("feature map" in words for words in told[0])
    assert any("feature map" in words for words in told[1])
    assert all(any("mean and deviation of the numbers" in words for words in each) for each in told)
