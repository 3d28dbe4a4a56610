"""Runs with thin replies: the same models, fewer bytes, and refusals where more is promised than they keep."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedsolve as fs
from fedsolve import codec, thin
from fedsolve.data.target import Numbers
from fedsolve.errors import ParameterError
from fedsolve.ledger.store import Ledger
from fedsolve.methods import create
from fedsolve.moments import Moments
from fedsolve.privacy.policy import Policy, Refusal
from fedsolve.runtime import client
from fedsolve.runtime.drive import drive
from fedsolve.runtime.inprocess import InProcess
from fedsolve.study.disclosure import disclosures
from fedsolve.study.settings import Settings

SIZES = (6, 30, 3, 90, 12, 18)  # of 40 features and one constant: the second and the fourth are too many to be thin


def federation(numbers: bool = False) -> fs.Federation:
    rng = np.random.default_rng(1)
    clients: dict[str, Any] = {}
    weight = rng.normal(size=(40, 3))
    for place, size in enumerate(SIZES):
        x = rng.normal(size=(size + 5, 40))
        scores = x @ weight + rng.normal(size=(size + 5, 3))
        y = scores[:, :2] if numbers else np.argmax(scores, axis=1)
        clients[f"c{place}"] = {"train": (x[:size], y[:size]), "test": (x[size:], y[size:])}
    if numbers:
        return fs.Federation.from_arrays(clients, target=Numbers(("a", "b")))
    return fs.Federation.from_arrays(clients, classes=3)


METHODS: dict[str, dict[str, Any]] = {
    "afl": {}, "fedhip": {}, "fedprior": {}, "apfl": {"d_primary": 70, "d_refine": 30},
}  # fmt: skip


@pytest.mark.parametrize("numbers", [False, True], ids=["classes", "numbers"])
@pytest.mark.parametrize("name", METHODS)
def test_models_are_those_of_sums_and_bytes_are_fewer(name: str, numbers: bool) -> None:
    data = federation(numbers)
    plain = fs.run(create(name, METHODS[name]), data)
    found = fs.run(create(name, {**METHODS[name], "thin": True}), data)
    assert found.bytes_up < 0.8 * plain.bytes_up
    for one, other in (
        (found.state, plain.state),
        *((found.models[c].arrays, plain.models[c].arrays) for c in data.clients),
    ):
        for key, array in other.items():
            np.testing.assert_allclose(one[key], array, rtol=0, atol=1e-7 * max(1.0, np.abs(array).max(initial=0.0)))


def test_who_has_many_samples_sends_sums() -> None:
    data, method = federation(), fs.AFL(thin=True)
    kinds = {}
    for name, each in data.clients.items():
        reply = method.update({}, {}, fs.Site(data.task, each.train, 1, np.random.default_rng(0)))[1]
        kinds[name] = "thin" if thin.are(reply) else "sums" if Moments.are(reply) else "?"
    assert list(kinds.values()) == ["thin", "sums", "thin", "sums", "thin", "thin"]


def test_a_pile_is_the_same_whatever_the_order_and_size(monkeypatch: pytest.MonkeyPatch) -> None:
    data = federation()
    whole = fs.run(fs.AFL(thin=True), data).state["weight"]
    monkeypatch.setattr(thin, "PILE", 1)  # each by itself
    np.testing.assert_allclose(fs.run(fs.AFL(thin=True), data).state["weight"], whole, rtol=1e-9, atol=1e-12)


def test_promises_that_thin_replies_do_not_keep_are_refused() -> None:
    pytest.importorskip("cryptography", reason="cryptography is not installed: pip install 'fedsolve[secure]'")
    data = federation()
    with pytest.raises(ParameterError, match="no secure sum holds them: leave out thin=true"):
        fs.run(fs.AFL(thin=True), data, secure=fs.Secure(quorum=3))
    with pytest.raises(ParameterError, match="noise is for sums"):
        fs.run(fs.AFL(thin=True), data, noise=fs.Noise(epsilon=1.0))


def test_a_site_refuses_by_itself() -> None:
    """A server that asks for both would get rows from sites that promise sums of several."""
    for privacy in ("secure", "noisy"):
        with pytest.raises(Refusal, match=f"its privacy is {privacy}, and thin replies are rows under a rotation"):
            Policy(privacy=privacy).admit("afl", "identity", quorum=3, epsilon=1.0, thin=True)
    Policy().admit("afl", "identity", thin=True)
    data = federation()
    request = client.Request("update", 1, 0, data.task.described, {})
    with pytest.raises(ParameterError, match="noise is for sums"):
        client.handle(fs.AFL(thin=True), data.task, data.clients["c0"], None, request, noise=fs.Noise(epsilon=1.0))


def test_a_ledger_keeps_sums(tmp_path: Path) -> None:
    data = federation()
    with Ledger.join(tmp_path / "l.db", fs.AFL(thin=True), data.task) as ledger:
        fs.run(fs.AFL(thin=True), data, on_reply=ledger.keep)
        assert len(ledger.members()) == len(SIZES)
        solved = ledger.solve().message["weight"]
    np.testing.assert_allclose(solved, fs.run(fs.AFL(), data).state["weight"], rtol=0, atol=1e-9)


@pytest.mark.parametrize("spoil", ["targets", "classes", "ones", "turned", "wide"])
def test_a_site_elsewhere_that_sends_no_samples_is_left_out(spoil: str) -> None:
    data, method = federation(), fs.AFL(thin=True)
    transport = InProcess(method, data)

    class Spoilt:
        """Carries a changed reply of the first client."""

        def clients(self) -> Any:
            return transport.clients()

        def ask(self, requests: Any, inbox: Any, tick: Any) -> None:
            class Changed:
                def put(self, name: str, answer: Any) -> None:
                    reply, head = codec.read(answer)
                    if name == "c0" and thin.are(reply):
                        changed = {key: array.copy() for key, array in reply.items()}
                        if spoil == "turned":
                            changed["turned"][0, 0] = np.nan
                        elif spoil == "classes":
                            changed["classes"][:] = 10**12
                        elif spoil == "wide":  # F'F of so many features would take 30 TB
                            changed["turned"] = np.zeros((6, 2_000_000))
                        else:
                            changed[spoil] *= 1.5
                        answer = codec.encode(changed, head)
                    inbox.put(name, answer)

                def empty(self) -> Any:
                    return self

                def merge(self, other: Any) -> None:
                    pass

            transport.ask(requests, Changed(), tick)

    outcome = drive(method, data.task, Spoilt(), tolerate=True)
    assert set(outcome.failed) == {"c0"}
    assert int(outcome.state["count"]) == sum(SIZES[1:])


def test_disclose_says_what_thin_replies_tell() -> None:
    settings = Settings(clients=60, partition="dirichlet:0.1", method="afl", set={"thin": True})
    plain = {
        each.site: each.report for each in disclosures(Settings(clients=60, partition="dirichlet:0.1", method="afl"))
    }
    found = {each.site: each.report for each in disclosures(settings)}
    for name, report in found.items():
        said = [line for line in report.sentences() if line.startswith("thin: rows are sent under a secret rotation")]
        assert bool(said) == (2 * report.samples < 65)
        assert not any(line.startswith("thin") for line in plain[name].sentences())
    assert any(report.thin for report in found.values()) and not all(report.thin for report in found.values())
