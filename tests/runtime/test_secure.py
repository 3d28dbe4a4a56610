"""Secure sums under the round loop: the results of plain ones, drop-outs, attacks at a site, and what a server sees."""

from __future__ import annotations

import dataclasses
import importlib.util
import random
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedsolve as fs
from fedsolve import arrays, codec
from fedsolve.arrays import Array, Arrays
from fedsolve.checks.probes import federation_for, sample_federation
from fedsolve.codec import Bytes
from fedsolve.errors import DataError, ParameterError
from fedsolve.methods import CATALOGUE, create, method_class
from fedsolve.runtime.checkpoint import Checkpoint
from fedsolve.runtime.client import Memory, Request, handle
from fedsolve.runtime.drive import Outcome, drive
from fedsolve.runtime.gather import Secure
from fedsolve.runtime.inbox import Failure, Inbox
from fedsolve.runtime.inprocess import InProcess, _with_keys
from tests.conftest import relative
from tests.contract.test_catalogue import SMALL, brief

pytest.importorskip("cryptography")

from fedsolve.privacy import packing
from fedsolve.privacy.protocol import Member
from fedsolve.privacy.reconstruct import compare, reconstruct

CLOSED_FORM = ("afl", "fedhip", "fedprior", "apfl", "glm", "mixed", "fedacnnl", "deepafl")
TORCH = importlib.util.find_spec("torch") is not None
QUIET = pytest.mark.filterwarnings(
    "ignore:.*no finite coefficients are likeliest",
    "ignore:mixed has no more samples",
    "ignore::fedsolve.PrecisionWarning",
)


def made(name: str) -> fs.Method:
    return brief(create(name, {**SMALL.get(name, {}), **({"ridge": 1.0} if name == "glm" else {})}))


class Trial(InProcess):
    """Clients with keys, in one process, and a server that may lose requests, mix up their order, and look on."""

    def __init__(self, method: fs.Method, federation: fs.Federation, secure: Secure | None = None) -> None:
        names = sorted(federation.clients)
        self.secure, self.members = _with_keys(secure or Secure(), names)
        super().__init__(method, federation, workers=1, members=self.members)
        self.fate: Mapping[str, str] = {}  # by client: the phase that it does not live to see
        self.mixed: random.Random | None = None
        self.seen: list[tuple[str, str, bytes]] = []  # kind, client, answer
        self.asked: list[tuple[str, str, bytes]] = []

    def ask(self, requests: Iterable[tuple[str, Bytes]], inbox: Inbox, tick: Callable[[int], None]) -> None:
        listed = list(requests)
        if self.mixed:
            self.mixed.shuffle(listed)
        for name, data in listed:
            request = Request.read(bytes(data))
            self.asked.append((request.kind, name, bytes(data)))
            alone = inbox.empty()
            if self.fate.get(name) == request.kind:
                alone.put(name, Failure("killed"))
            else:
                try:
                    answer = bytes(self._handle(name, request))
                    self.seen.append((request.kind, name, answer))
                    alone.put(name, answer)
                except DataError as error:
                    alone.put(name, Failure(str(error)))
            inbox.merge(alone)

    def run(self, **options: Any) -> Outcome:
        return drive(self._method, self._federation.task, self, gathering=self.secure, **options)


# --- results ---


@QUIET
@pytest.mark.parametrize("name", CLOSED_FORM)
def test_secure_sums_give_the_plain_result(name: str) -> None:
    method = made(name)
    federation = federation_for(method)
    plain, secure = fs.run(method, federation), fs.run(method, federation, secure=Secure())
    assert plain.state.keys() == secure.state.keys()
    for key, value in plain.state.items():
        assert secure.state[key].dtype == value.dtype
        assert secure.state[key].shape == value.shape
    assert plain.shared is not None
    assert secure.shared is not None
    for key, value in plain.shared.arrays.items():
        if value.dtype.kind == "f" and np.linalg.norm(value):
            assert relative(secure.shared.arrays[key], value) < 1e-9, key
    inputs = federation.clients["site-0"].test.inputs
    for client, model in plain.models.items():
        found, wanted = secure.models[client].predict(inputs), model.predict(inputs)
        if found.dtype.kind == "f":
            assert relative(found, wanted) < 1e-9
        else:
            assert (found == wanted).all()
    for metric, spread in plain.metrics.items():
        assert secure.metrics[metric].pooled == pytest.approx(spread.pooled, rel=1e-9)
        assert secure.metrics[metric].mean is None
    assert secure.baseline == pytest.approx(plain.baseline)
    assert secure.confusion == plain.confusion
    assert secure.rounds == plain.rounds


@QUIET
@pytest.mark.parametrize("name", CLOSED_FORM)
def test_any_order_of_arrival_gives_the_same_bits(name: str) -> None:
    method = made(name)
    states = []
    for seed in (1, 2):
        trial = Trial(method, federation_for(method))
        trial.mixed = random.Random(seed)
        states.append(trial.run().state)
    assert arrays.same(*states)


@pytest.mark.skipif(not TORCH, reason="gradient methods need torch")
@pytest.mark.parametrize("name", ["fedavg", "fedprox", "ditto", "feddyn", "fedselect", "moon", "fedala", "fedas"])
def test_averaged_networks_under_a_secure_sum(name: str) -> None:
    method = made(name)
    federation = federation_for(method)
    plain, secure = (fs.run(method, federation, workers=1, secure=secure) for secure in (None, Secure()))
    for key, value in plain.state.items():
        assert secure.state[key].dtype == value.dtype
        if value.dtype.kind == "f" and np.linalg.norm(value):
            assert relative(secure.state[key].astype(float), value.astype(float)) < 1e-4, key
    assert secure.accuracy.pooled == pytest.approx(plain.accuracy.pooled, abs=0.02)


@QUIET
@pytest.mark.parametrize("name", [n for n in CATALOGUE if TORCH or method_class(n).closed_form])
def test_every_method_says_whether_it_works_under_a_secure_sum(name: str) -> None:
    """Those that add up replies do; others are refused before any client computes."""
    method = made(name)
    federation = federation_for(method)
    trial = Trial(method, federation)
    state = method.init_server(fs.Server(federation.task, 0, np.random.default_rng(0)))
    plan = method.plan(state, tuple(federation.clients))
    if plan.fold == "sum" and not plan.each:
        assert all(np.isfinite(array).all() for array in trial.run().state.values() if array.dtype.kind == "f")
        return
    with pytest.raises(
        ParameterError, match=r"^a secure sum shows the server nothing but the sum over all clients, and the"
    ):
        trial.run()
    assert trial.asked == []


def test_numbers_are_summed_too() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(90, 4))
    y = x @ rng.normal(size=4) + 1e5
    parts = {f"c{i}": {"train": (x[i::3][:20], y[i::3][:20]), "test": (x[i::3][20:], y[i::3][20:])} for i in range(3)}
    federation = fs.Federation.from_arrays(parts, target=fs.Numbers(("y",)))
    plain, secure = fs.run(fs.FedHiP(), federation), fs.run(fs.FedHiP(), federation, secure=Secure())
    assert secure.metrics["rmse"].pooled == pytest.approx(plain.metrics["rmse"].pooled)
    assert relative(secure.state["weight"], plain.state["weight"]) < 1e-9


def _none(samples: fs.Samples) -> fs.Samples:
    return fs.Samples(samples.inputs[:0], samples.labels[:0])


def test_clients_without_test_samples_and_no_evaluation_at_all() -> None:
    federation = sample_federation()
    empty = {n: dataclasses.replace(c, test=_none(c.test)) for n, c in federation.clients.items()}
    some = {**federation.clients, "site-0": empty["site-0"]}
    found, wanted = (
        fs.run(fs.AFL(), dataclasses.replace(federation, clients=some), secure=secure) for secure in (Secure(), None)
    )
    assert found.accuracy.pooled == wanted.accuracy.pooled
    assert fs.run(fs.AFL(), dataclasses.replace(federation, clients=empty), secure=Secure()).metrics == {}


@pytest.mark.parametrize("clients", [3, 10, 100, pytest.param(1000, marks=pytest.mark.long)])
def test_few_and_many_clients(clients: int) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(clients * 6, 4)), rng.integers(3, size=clients * 6)
    parts = zip(np.split(x, clients), np.split(y, clients), strict=True)
    federation = fs.Federation.from_arrays(
        {f"c{i:05d}": {"train": p, "test": p} for i, p in enumerate(parts)}, classes=3
    )
    plain, secure = fs.run(fs.AFL(), federation), fs.run(fs.AFL(), federation, secure=Secure())
    assert relative(secure.state["weight"], plain.state["weight"]) < 1e-9
    assert secure.accuracy.pooled == plain.accuracy.pooled


def test_what_a_result_says_and_loads(tmp_path: Path) -> None:
    federation = sample_federation()
    result = fs.run(fs.FedHiP(), federation, secure=Secure(quorum=4, fraction=50))
    wanted = {"secure": True, "quorum": 4, "epsilon": None, "fraction": 50, "figures": "pooled"}
    assert result.privacy == wanted
    loaded = fs.Result.load(result.save(tmp_path / "run"))
    assert loaded.privacy == wanted
    assert loaded.clients == result.clients
    assert set(loaded.models) == set(federation.clients)
    client = result.clients["site-0"]
    assert (client.train, client.test, client.metrics, client.chosen) == (None, None, {}, {})
    assert "secure sums: the server saw sums over at least 4 clients" in result._repr_html_()
    assert "None" not in result._repr_html_()
    assert fs.run(fs.FedHiP(), federation).json()["privacy"] == {"secure": False, "quorum": None, "epsilon": None}


def test_bytes_are_twice_the_plain_ones_and_counted() -> None:
    rng = np.random.default_rng(0)
    parts = {f"c{i}": {"train": (rng.normal(size=(9, 60)), rng.integers(2, size=9))} for i in range(4)}
    federation = fs.Federation.from_arrays(parts, classes=2)
    plain, trial = fs.run(fs.AFL(), federation), Trial(fs.AFL(), federation)
    (line,) = trial.run(evaluate=False).history
    assert line.bytes_up == sum(len(answer) for _, _, answer in trial.seen)
    assert 1.9 < line.bytes_up / plain.bytes_up < 2.2


def test_a_stopped_run_goes_on_and_keeps_no_secret(tmp_path: Path) -> None:
    method, federation = fs.GLM(ridge=1.0), sample_federation()

    class Stop(Exception):
        pass

    def stop(line: fs.Result, rounds: int) -> None:
        if line.round == 2:  # type: ignore[attr-defined]
            raise Stop

    whole = fs.run(method, federation, secure=Secure())
    with pytest.raises(Stop):
        fs.run(method, federation, secure=Secure(), checkpoint=Checkpoint(tmp_path, 1), on_round=stop)  # type: ignore[arg-type]
    kept, _ = codec.read_file(tmp_path / "checkpoint.safetensors")
    assert (tmp_path / "checkpoint.safetensors").stat().st_mode & 0o077 == 0
    secret = {name.rpartition("/")[2] for name in kept if "/secure/" in name}
    assert secret == {"seen", "journal"}
    resumed = fs.run(method, federation, secure=Secure(), checkpoint=Checkpoint(tmp_path, 1, resume=True))
    assert arrays.same(resumed.state, whole.state)


# --- refusals ---


def test_what_cannot_be_is_refused_at_once() -> None:
    federation = sample_federation()
    with pytest.raises(ParameterError, match=r"participation=0.5: leave it at 1$"):
        fs.run(fs.AFL(), federation, participation=0.5, secure=Secure())
    with pytest.raises(ParameterError, match=r"^under a secure sum nobody sees a client's reply"):
        fs.run(fs.AFL(), federation, secure=Secure(), on_reply=lambda client, reply: None)
    with pytest.raises(DataError, match=r"^a secure sum takes at least 3 clients; there are 2$"):
        fs.run(fs.AFL(), federation, secure=Secure(), absent=[f"site-{i}" for i in range(4)])
    with pytest.raises(DataError, match=r"^a secure sum takes at least 7 clients; there are 6$"):
        fs.run(fs.AFL(), federation, secure=Secure(quorum=7))
    for quorum in (2, 0, 3.0, True):
        with pytest.raises(ParameterError, match=r"^quorum must be an integer of at least 3"):
            Secure(quorum=quorum)  # type: ignore[arg-type]
    for fraction in (-1, 127):
        with pytest.raises(ParameterError, match=r"^fraction must be"):
            Secure(fraction=fraction)
    with pytest.raises(DataError, match=r"^a secure sum needs the public key of every client, and 'site-0' has none$"):
        fs.run(fs.AFL(), federation, gathering=Secure())


def test_numbers_out_of_range_are_refused_by_the_client_by_name() -> None:
    x = np.full((6, 2), 1e9)
    parts = {f"c{i}": {"train": (x[2 * i : 2 * i + 2], np.array([0, 1]))} for i in range(3)}
    federation = fs.Federation.from_arrays(parts, classes=2)
    assert fs.run(fs.AFL(ridge=1.0), federation, secure=Secure(fraction=40)).rounds == 1
    with pytest.raises(
        DataError, match=r"^client 'c0': 'triangle' has values that do not fit: a secure sum over 3 sites with 70"
    ):
        fs.run(fs.AFL(ridge=1.0), federation, secure=Secure(fraction=70))


def test_sums_that_no_samples_have_are_refused() -> None:
    """One of the parts is not what it should be: the sum shows that, and not whose it is."""

    @dataclasses.dataclass(frozen=True)
    class Lies(fs.AFL):
        def update(self, private: Arrays, message: Arrays, site: fs.Site) -> tuple[Arrays, Arrays]:
            private, reply = super().update(private, message, site)
            lie = len(site.train) == 60
            return private, {**reply, "triangle": -1e6 * reply["triangle"]} if lie else reply

    with pytest.raises(
        DataError, match=r"^the secure sum is none of replies that can be .*; nobody can tell whose it is"
    ):
        fs.run(Lies(), sample_federation(), secure=Secure())


# --- drop-outs ---


@pytest.mark.parametrize("seed", range(30))
def test_random_faults_give_the_exact_result_of_the_counted_or_one_sentence(seed: int) -> None:
    rng = random.Random(seed)
    federation = sample_federation(sizes=(20, 25, 30, 15, 30, 24, 10, 12, 14))
    names = sorted(federation.clients)
    lost = rng.sample(names, rng.choice([1, 1, 2, 2, 3, 5]))
    fate = {name: rng.choice(["open", "mask", "unmask"]) for name in lost}
    trial = Trial(fs.AFL(), federation)
    trial.fate = fate
    counted = [name for name in names if fate.get(name) not in ("open", "mask")]
    wanted = Trial(fs.AFL(), dataclasses.replace(federation, clients={n: federation.clients[n] for n in counted}))
    try:
        found = trial.run(tolerate=True, evaluate=False)
    except DataError as error:
        assert len(lost) > 2  # of nine sites, each has eight neighbours, and six must be left
        assert "\n" not in str(error)
        return
    assert len(counted) >= 3
    assert set(names) - set(found.history[0].missing) == set(counted)
    assert set(found.failed) == set(names) - set(counted)
    assert arrays.same(found.state, wanted.run(evaluate=False).state)


def test_clients_that_were_lost_hear_of_it_and_their_update_never_happened() -> None:
    """The rest of the run is over the others: with the lost one back, their difference would be its part."""
    method, federation = fs.GLM(ridge=1.0), sample_federation(sizes=(20, 25, 30, 15, 30, 24, 10))

    class Back(Trial):
        def ask(self, requests: Any, inbox: Inbox, tick: Any) -> None:
            listed = list(requests)
            self.fate = {"site-3": "mask"} if Request.read(bytes(listed[0][1])).round == 1 else {}
            super().ask(listed, inbox, tick)

    with pytest.raises(
        DataError, match=r"the sum would differ from an earlier one over the same data by 1 site \(site-3\)"
    ):
        Back(method, federation).run(tolerate=True, evaluate=False)

    class Gone(Back):
        def clients(self) -> list[str]:
            return [name for name in super().clients() if name != "site-3" or not self.asked]

    trial = Gone(method, federation)
    found = trial.run(tolerate=True, evaluate=False)
    rest = {name: client for name, client in federation.clients.items() if name != "site-3"}
    wanted = Trial(method, dataclasses.replace(federation, clients=rest)).run(evaluate=False)
    assert arrays.same(found.state, wanted.state)


def test_an_evaluation_that_too_few_answer_costs_the_figures_and_not_the_model() -> None:
    federation = sample_federation()

    class Late(Trial):
        def ask(self, requests: Any, inbox: Inbox, tick: Any) -> None:
            self.fate = dict.fromkeys(["site-0", "site-1", "site-2"], "mask") if len(self.asked) >= 18 else {}
            super().ask(requests, inbox, tick)

    found = Late(fs.AFL(), federation).run(tolerate=True)
    assert found.state["weight"].any()
    assert found.tallies == {}
    assert set(found.failed) == set(federation.clients)
    with pytest.raises(DataError):
        Late(fs.AFL(), federation).run()


def test_a_part_of_another_layout_is_left_out() -> None:
    @dataclasses.dataclass(frozen=True)
    class Odd(fs.AFL):
        def update(self, private: Arrays, message: Arrays, site: fs.Site) -> tuple[Arrays, Arrays]:
            private, reply = super().update(private, message, site)
            return private, {**reply, "more": np.zeros(3)} if len(site.train) == 60 else reply

    federation = sample_federation()
    found = Trial(Odd(), federation).run(tolerate=True, evaluate=False)
    assert list(found.failed) == ["site-2"]
    assert "more" in found.failed["site-2"]
    rest = {name: client for name, client in federation.clients.items() if name != "site-2"}
    wanted = Trial(fs.AFL(), dataclasses.replace(federation, clients=rest)).run(evaluate=False)
    assert arrays.same(found.state, wanted.state)
    with pytest.raises(DataError, match=r"^client 'site-2': its part has"):
        Trial(Odd(), federation).run(evaluate=False)


# --- what a server sees ---


def test_nothing_that_a_server_receives_tells_of_a_clients_statistics() -> None:
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(3, 200))
    parts = {}
    for i in range(5):
        y = rng.integers(3, size=40)
        parts[f"c{i}"] = {"train": (centres[y] + rng.uniform(size=(40, 200)), y), "test": (centres[y], y)}
    federation = fs.Federation.from_arrays(parts, classes=3)
    told: dict[str, Arrays] = {}
    fs.run(fs.AFL(), federation, on_reply=lambda client, reply: told.update({client: reply}))
    trial = Trial(fs.AFL(), federation)
    trial.run()
    assert {kind for kind, _, _ in trial.seen} == {"open", "mask", "unmask"}
    masked = [(client, codec.read(answer)) for kind, client, answer in trial.seen if kind == "mask"]
    layout = arrays.layout(told["c0"])
    bytes_seen = np.zeros(256)
    for client, (said, head) in masked:
        assert said.keys() == {"masked"}
        assert head.keys() == {"layout"}
        bytes_seen += np.bincount(said["masked"].view(np.uint8).ravel(), minlength=256)
        if packing.from_text(head["layout"]) != layout:
            continue  # figures
        wanted = np.concatenate([told[client][name].astype(float).ravel() for name, _, _ in layout])
        views: list[Array] = [row.astype(float) for row in said["masked"]]
        views += [said["masked"].view(np.int64)[1].astype(float)]
        views += [np.concatenate([a.astype(float).ravel() for a in _read_anyhow(said["masked"], layout).values()])]
        for view in views:
            assert abs(np.corrcoef(view, wanted)[0, 1]) < 0.05
    expected = bytes_seen.mean()
    assert 160 < ((bytes_seen - expected) ** 2 / expected).sum() < 370  # chi-square of 255 degrees of freedom
    for kind, client, answer in trial.seen:  # nor does any number of a reply stand in any answer as it is
        for array in told[client].values():
            for number in np.unique(array.astype("<f8"))[:50]:
                assert abs(number) < 1e-6 or number.tobytes() not in answer, kind


def _read_anyhow(words: Array, layout: arrays.Layout) -> dict[str, Array]:
    """As if it were no mask: integers of more than a word are nothing but their low one."""
    floats = tuple((name, "<f8", shape) for name, _, shape in layout)
    return packing.unpack(words, floats, 60)


def test_rows_come_back_from_plain_statistics_and_from_nothing_of_a_secure_run() -> None:
    """The attack of `fedsolve disclose`: all rows of a client from its plain sums, none from its part or the sum."""
    rng = np.random.default_rng(0)
    parts = {}
    for i in range(8):  # 12 rows of each, fewer than features; 96 of all, more
        labels = rng.integers(3, size=12)
        parts[f"c{i}"] = {"train": (np.maximum(rng.normal(size=(12, 80)), 0.0), labels)}
    federation = fs.Federation.from_arrays(parts, classes=3)
    method = fs.AFL(intercept=False)
    told: dict[str, Arrays] = {}
    fs.run(method, federation, on_reply=lambda client, reply: told.update({client: reply}))
    trial = Trial(method, federation)
    trial.run()
    layout = arrays.layout(told["c0"])
    masked = {client: codec.read(answer) for kind, client, answer in reversed(trial.seen) if kind == "mask"}
    total = {name: np.sum([reply[name] for reply in told.values()], axis=0) for name in told["c0"]}
    for client, reply in told.items():
        train = federation.clients[client].train
        guess = reconstruct(fs.Moments.from_arrays(reply))
        assert guess is not None
        found = compare(train.inputs, train.labels, guess)
        assert (found.exact, found.labels) == (1.0, 1.0)
        said, head = masked[client]
        assert packing.from_text(head["layout"]) == layout
        seen = _read_anyhow(said["masked"], layout)
        seen["count"] = reply["count"]  # suppose that the server knows how many there are
        for view in (seen, total):
            moments = fs.Moments.from_arrays({name: view[name].astype(reply[name].dtype) for name in reply})
            with np.errstate(all="ignore"):
                assert reconstruct(moments, turns=300, starts=1) is None
        gram = fs.Moments.from_arrays({**reply, "triangle": seen["triangle"]}).gram  # ... and the labels, too
        values, vectors = np.linalg.eigh(gram / np.abs(gram).max())
        rows = np.sqrt(np.maximum(values[-12:], 0.0))[:, None] * vectors[:, -12:].T
        cosines = np.abs(rows @ train.inputs.T) / np.outer(*(np.linalg.norm(x, axis=1) for x in (rows, train.inputs)))
        assert cosines.max() < 0.6


def test_what_a_server_reads_off_plain_statistics_it_cannot_read_off_secure_ones() -> None:
    """The only sample of a class stands in F'Y as it is: found in the plain reply, and in nothing of a secure run."""
    rng = np.random.default_rng(0)
    parts = {}
    for i in range(4):
        labels = np.array([0] * 9 + [1] * (i == 0) + [0] * (i != 0) + [2] * 5)
        parts[f"c{i}"] = {"train": (rng.uniform(size=(15, 30)), labels)}
    federation = fs.Federation.from_arrays(parts, classes=3)
    victim = federation.clients["c0"].train.inputs[9]
    told: dict[str, Arrays] = {}
    fs.run(fs.AFL(intercept=False), federation, on_reply=lambda client, reply: told.update({client: reply}))
    assert np.allclose(told["c0"]["cross"][:, 1], victim)
    trial = Trial(fs.AFL(intercept=False), federation)
    trial.run()
    layout = arrays.layout(told["c0"])
    parts_seen = [
        codec.decode(answer)["masked"] for kind, client, answer in trial.seen if kind == "mask" and client == "c0"
    ]
    guess = _read_anyhow(parts_seen[0], layout)["cross"][:, 1]
    assert abs(np.corrcoef(guess, victim)[0, 1]) < 0.6  # of 30 numbers: chance
    assert not np.allclose(guess, victim)


# --- attacks at a site, as messages ---


class Target:
    """One site of a federation in which all others do what they should, and a server that sends what it likes."""

    def __init__(self) -> None:
        self.federation = sample_federation()
        self.trial = Trial(fs.AFL(), self.federation)
        self.trial.run(evaluate=False)
        self.me = "site-0"
        self.requests = {kind: data for kind, name, data in self.trial.asked if name == self.me}
        self.memory: Memory | None = None

    def ask(self, kind: str, member: Member | None = None, **words: Array) -> Arrays:
        """What it answers; the server may change words of the request."""
        request = Request.read(self.requests[kind])
        request = dataclasses.replace(request, words={**request.words, **words})
        client = self.federation.clients[self.me]
        member = member or self.trial.members[self.me]
        self.memory, answer = handle(fs.AFL(), self.federation.task, client, self.memory, request, member=member)
        return codec.decode(answer)


def test_a_session_that_was_opened_is_not_opened_again_nor_unmasked_twice() -> None:
    site = Target()
    site.memory = site.trial.memory[site.me]
    with pytest.raises(DataError, match=r"^this session was opened before"):
        site.ask("open")
    for kind in ("mask", "unmask"):
        with pytest.raises(
            DataError, match=r"^no secure sum is under way at this site: it was never opened, or is over$"
        ):
            site.ask(kind)


def test_secrets_are_gone_after_the_session() -> None:
    site = Target()
    for memory in site.trial.memory.values():
        assert set(memory.secure) == {"seen", "journal"}
        assert "key" not in repr(memory)


def test_a_secure_site_does_not_answer_in_plain_nor_a_plain_one_under_masks() -> None:
    site = Target()
    task, client = site.federation.task, site.federation.clients[site.me]
    request = Request("update", 1, 0, task.described, {})
    for kind in ("update", "evaluate"):
        asked = dataclasses.replace(request, kind=kind)
        with pytest.raises(
            DataError, match=r"^this site takes part in secure sums alone, and the server asks in plain"
        ):
            handle(fs.AFL(), task, client, None, asked, member=site.trial.members[site.me])
    with pytest.raises(DataError, match=r"^the server asks for a secure sum, and this site has no keys for one"):
        handle(fs.AFL(), task, client, None, Request.read(site.requests["open"]))


def test_requests_about_another_round_or_session_are_refused() -> None:
    site = Target()
    later = dataclasses.replace(Request.read(site.requests["open"]), round=2)
    site.requests["open"] = bytes(later.write())
    with pytest.raises(DataError, match=r"^the secure sum is said to be about another round, method or feature space"):
        site.ask("open")
    with pytest.raises(DataError, match=r"^no secure sum is under way"):
        site.ask("mask")


def test_keys_and_openings_that_were_changed_on_the_way_are_refused() -> None:
    """The site opens a session of its own with fresh secrets; what was said in the earlier one is of no use."""
    names = sorted(sample_federation().clients)

    def spoilt(kind: str, change: Callable[[dict[str, Array]], None]) -> str:
        class Spoils(Trial):
            def ask(self, requests: Any, inbox: Inbox, tick: Any) -> None:
                changed = []
                for name, data in requests:
                    request = Request.read(bytes(data))
                    if request.kind == kind and name == names[0]:
                        words = {key: np.array(value) for key, value in request.words.items()}
                        change(words)
                        data = dataclasses.replace(request, words=words).write()
                    changed.append((name, data))
                super().ask(changed, inbox, tick)

        attack = Spoils(fs.AFL(), sample_federation())
        outcome = attack.run(tolerate=True, evaluate=False)
        assert kind == "unmask" or names[0] in outcome.failed
        if kind == "unmask":
            assert set(attack.memory[names[0]].secure) > {"seen", "key", "seed"}  # nothing was told
            return ""
        return outcome.failed[names[0]]

    def flip(name: str) -> Callable[[dict[str, Array]], None]:
        def change(words: dict[str, Array]) -> None:
            words[name].reshape(-1)[0] ^= 1

        return change

    assert "is not signed by it for this session" in spoilt("mask", flip("keys"))
    assert "is not signed by it for this session" in spoilt("mask", flip("checks"))
    assert "is not signed by it for this session" in spoilt("mask", flip("signatures"))
    assert "is not what it sealed for this site" in spoilt("mask", flip("sealed"))
    assert "another secure sum" in spoilt("mask", flip("id"))
    assert "introductions must be of neighbours" in spoilt("mask", lambda words: words["places"].__setitem__(0, 99))
    assert "introductions must be of neighbours" in spoilt("mask", lambda words: words["places"].__setitem__(0, 1))
    assert "a message of a secure sum must have 'keys'" in spoilt("mask", lambda words: words.__delitem__("keys"))
    assert "session" in spoilt("open", flip("session"))
    spoilt("unmask", lambda words: words["counted"].fill(False))
    spoilt("unmask", lambda words: words["counted"].__setitem__(slice(1, 4), False))
    spoilt("unmask", lambda words: words.__setitem__("counted", np.ones(9, bool)))


def test_a_server_that_sends_one_client_something_else_is_refused_by_it() -> None:
    """As coefficients with which the data of all others weigh nothing: the sum would be the one client's part."""

    class Singles(Trial):
        def ask(self, requests: Any, inbox: Inbox, tick: Any) -> None:
            changed = []
            for name, data in requests:
                request = Request.read(bytes(data))
                if request.kind == "mask" and request.round == 2 and name != "site-0":
                    message = {key: 1e3 * value for key, value in request.message.items()}
                    data = dataclasses.replace(request, message=message).write()
                changed.append((name, data))
            super().ask(changed, inbox, tick)

    with pytest.raises(
        DataError, match=r"the message is not the one that the secure sum is about: all its sites must be"
    ):
        Singles(fs.GLM(ridge=1.0), sample_federation()).run(tolerate=True, evaluate=False)


def test_a_method_that_sends_each_client_its_own_is_refused() -> None:
    @dataclasses.dataclass(frozen=True)
    class Own(fs.AFL):
        def message(self, state: Arrays, client: str, purpose: Any) -> Arrays:
            return {**super().message(state, client, purpose), "own": np.array(int(client[-1]))}

    with pytest.raises(
        ParameterError, match=r"^clients of a secure sum are all sent the same, and the method sends each"
    ):
        fs.run(Own(), sample_federation(), secure=Secure())


def test_without_the_extra_one_sentence_says_what_to_install() -> None:
    import subprocess
    import sys

    code = (
        "import sys; sys.modules['cryptography'] = None\n"
        "import fedsolve as fs\n"
        "fs.run(fs.AFL(), fs.load('digits').split(fs.iid(), clients=3))\n"
        "fs.run(fs.AFL(), fs.load('digits').split(fs.iid(), clients=3), secure=fs.Secure())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    last = done.stderr.strip().splitlines()[-1]
    assert last.endswith('DataError: secure sums need the package cryptography: pip install "fedsolve[secure]"')


def test_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.docs.test_docs import run_command

    def run(words: str) -> tuple[int, str]:
        code, output = run_command(["fedsolve", *words.split()], monkeypatch)
        return code, " ".join(output.split())

    monkeypatch.chdir(tmp_path)
    code, output = run("run --method afl --clients 5 --secure --quorum 4 --out run")
    assert code == 0
    assert "secure sums: the server saw sums over at least 4 clients, and no client's part" in output
    result = fs.Result.load(tmp_path / "run")
    assert result.privacy["quorum"] == result.settings["quorum"] == 4
    assert "split" not in result.data
    assert result.spread("alone").pooled is not None
    for words, said in (
        ("run --quorum 4", "--quorum is the fewest clients in a secure sum: give it together with --secure"),
        ("run --secure --quorum 2", "quorum must be an integer of at least 3; got 2"),
        ("run --secure --participation 0.5", "leave it at 1"),
        ("run --secure --clients 2", "a secure sum takes at least 3 clients; there are 2"),
        ("run --secure --method pfedacnnl --set network=lr", "a secure sum shows the server nothing but the sum"),
    ):
        code, output = run(words)
        assert (code, said in output) == (2, True), output
