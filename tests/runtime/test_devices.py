"""Clients that are not equally fast, emulated: a clock that is computed from what was measured."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedsolve as fs
from fedsolve import arrays
from fedsolve.checks import sample_federation
from fedsolve.families.layered import layers
from fedsolve.records import ClientResult, Times
from fedsolve.report.runfile import entries
from fedsolve.resultfile import digest, read_result
from fedsolve.runtime import inprocess
from fedsolve.runtime.checkpoint import Checkpoint
from fedsolve.runtime.devices import Device, Devices, lap
from fedsolve.runtime.pace import Pace
from fedsolve.runtime.stopwatch import Work
from fedsolve.study import compare
from fedsolve.study.experiment import Settings
from tests.conftest import unsealed
from tests.runtime.test_cli import Command, figures

# --- words


@st.composite
def kinds(draw: st.DrawFn) -> Devices:
    slow = draw(st.lists(st.floats(1.001, 1e6), max_size=4, unique=True))
    weights = draw(st.lists(st.floats(0.01, 1), min_size=len(slow), max_size=len(slow)))
    shares = [] if draw(st.booleans()) else [weight / (sum(weights) + 1) for weight in weights]
    return Devices(tuple(slow), tuple(shares), draw(st.floats(0.001, 1e5)))


@given(kinds())
def test_words_say_all_of_devices(devices: Devices) -> None:
    assert Devices.of(str(devices)) == devices
    assert Devices.of(devices) is devices


def test_words_are_short_where_nothing_is_to_be_said() -> None:
    assert str(Devices((4, 16))) == "slow:4,16"
    assert str(Devices((4, 16), (0.2, 0.1), 20)) == "slow:4@0.2,16@0.1;mbit=20"
    assert str(Devices(mbit=10)) == "mbit=10"
    assert Devices.of("slow:4, 16; mbit=100") == Devices((4, 16))


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("", "devices must be as in slow:4,16"),
        ("fast:4", "devices must be as in slow:4,16"),
        ("slow:", "devices must be as in"),
        ("slow:4,", "devices must be as in"),
        ("slow:4;slow:16", "devices must be as in"),
        ("slow:4;mbit=10;mbit=20", "devices must be as in"),
        ("mbit=10;slow:4", "devices must be as in"),
        ("slow:4@0.1@0.2", "devices must be as in"),
        ("slow:nan", "devices must be as in"),
        ("slow:1_6", "devices must be as in"),
        ("slow:4x", "devices must be as in"),
        ("slow:4;mbit=fast", "devices must be as in"),
        ("slow:1", "more than once"),
        ("slow:0.5", "more than once"),
        ("slow:4,4", "each another number of times; got 4, 4"),
        ("slow:1e7", "at most 1e.06 times slower"),
        ("slow:4@0.2,16", "all have a share or none; got 2 of them and 1 shares"),
        ("slow:4@0,16@0.1", "above 0 and at most 1 together; got 0, 0.1"),
        ("slow:4@0.7,16@0.7", "at most 1 together; got 0.7, 0.7"),
        ("slow:4;mbit=0", "mbit of devices must be a number of megabits above 0; got 0.0"),
    ],
)
def test_wrong_words_are_refused_by_what_is_wrong(words: str, told: str) -> None:
    with pytest.raises(fs.ParameterError, match=told):
        Devices.of(words)


@pytest.mark.parametrize("value", [3, ("4",), "4"])
def test_wrong_values_are_refused(value: Any) -> None:
    with pytest.raises(fs.ParameterError, match="slow of devices must be numbers"):
        Devices(value)
    with pytest.raises(fs.ParameterError, match="devices must be as in"):
        fs.run(fs.AFL(), sample_federation(), devices=value)


# --- who is slow


@given(kinds(), st.integers(1, 60), st.integers(0, 5))
def test_as_many_are_slow_as_the_shares_say_whoever_names_them(devices: Devices, count: int, seed: int) -> None:
    names = [f"client-{number}" for number in range(count)]
    drawn = devices.slower(names, seed)
    assert drawn == devices.slower(names[::-1], seed)
    shares = devices.shares or [1 / (len(devices.slow) + 1)] * len(devices.slow)
    for times, share in zip(devices.slow, shares, strict=True):
        assert abs(sum(each == times for each in drawn.values()) - share * count) <= 1
    assert set(drawn.values()) <= {1.0, *devices.slow}


def test_who_is_slow_is_drawn_by_the_seed_and_a_third_is_a_third() -> None:
    names = [f"client-{number}" for number in range(12)]
    first, again, other = (Devices((4, 16)).slower(names, seed) for seed in (0, 0, 1))
    assert first == again != other
    assert sorted(first.values()) == [1.0] * 4 + [4.0] * 4 + [16.0] * 4
    lines = Devices((4, 16), mbit=32).assigned(names, 0)
    assert {device.mbit * device.slower for device in lines.values()} == {32.0}


# --- the clock


@given(
    st.dictionaries(
        st.sampled_from("abcdef"),
        st.builds(Work, st.floats(0, 1e3), st.integers(0, 10**9), st.integers(0, 10**9)),
        min_size=1,
    ),
    st.dictionaries(st.sampled_from("abcdef"), st.builds(Device, st.floats(1, 100), st.floats(0.1, 1e4))),
)
def test_all_are_over_when_the_last_is_done(work: dict[str, Work], devices: dict[str, Device]) -> None:
    times, last = lap(work, devices)
    ends = {}
    for name, done in work.items():
        device = devices.get(name)
        slower, bits = (device.slower, 1e6 * device.mbit) if device else (1.0, np.inf)
        ends[name] = done.seconds * slower + (done.down * 8 + done.up * 8) / bits
    assert last == pytest.approx(max(ends.values()))
    for name, each in times.items():
        assert each.compute + each.waiting + each.transfer == pytest.approx(last)
        assert each.waiting == pytest.approx(last - ends[name], abs=1e-9 * last)
        assert each.waiting >= 0
    assert lap({}, devices) == ({}, 0.0)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    """A processor that counts the seconds that a test says work takes."""
    now = SimpleNamespace(now=0.0)
    tick = lambda: now.now  # noqa: E731
    fake = SimpleNamespace(process_time=tick, thread_time=tick, perf_counter=tick)
    monkeypatch.setattr(inprocess, "time", fake)
    monkeypatch.setattr("fedsolve.runtime.drive.time", fake)
    monkeypatch.setattr("fedsolve.runtime.client.time", fake)
    yield now


def counting(clock: SimpleNamespace, rounds: int, paced: bool = False) -> fs.Method:
    """AFL in several rounds, whose steps take so many seconds of the clock."""

    @dataclasses.dataclass(frozen=True)
    class Counting(fs.AFL):
        @property
        def rounds(self) -> int:
            return rounds

        @property
        def paced(self) -> bool:
            return paced

        def aggregate(self, state: Any, replies: Any, server: Any) -> Any:
            clock.now += 0.25
            return super().aggregate(state, replies, server)

        def update(self, private: Any, message: Any, site: Any) -> Any:
            clock.now += len(site.train) / 100 / site.pace
            return super().update(private, message, site)

        def personalize(self, private: Any, message: Any, site: Any) -> Any:
            clock.now += 3.0
            return super().personalize(private, message, site)

        def predict(self, model: Any, inputs: Any, task: Any) -> Any:
            clock.now += 1000.0  # nobody's work: it is on test samples
            return super().predict(model, inputs, task)

    return Counting(ridge=1.0, intercept=False)


@pytest.mark.parametrize("every", [1, 2])
def test_updates_and_the_last_personal_model_count_and_figures_do_not(clock: SimpleNamespace, every: int) -> None:
    federation = fs.load("digits").split("iid", clients=3, seed=0)
    devices = Devices((4,), (0.4,), mbit=1e9)
    slower = devices.slower(list(federation.clients), 5)
    assert sorted(slower.values()) == [1.0, 1.0, 4.0]
    result = fs.run(counting(clock, 3), federation, seed=5, devices=devices, evaluate_every=every)
    work = {name: 3 * len(client.train) / 100 + 3.0 for name, client in federation.clients.items()}
    last = max(work[name] * slower[name] for name in work)
    for name, client in result.clients.items():
        assert client.seconds is not None
        assert client.seconds.compute == pytest.approx(work[name] * slower[name])
        assert client.seconds.waiting == pytest.approx(last - work[name] * slower[name], abs=1e-4)
        assert client.seconds.transfer < 1e-4
    assert sum(line.seconds for line in result.history) == pytest.approx(last + 3 * 0.25, abs=1e-4)
    here = fs.run(counting(clock, 3), federation, seed=5, evaluate_every=every)
    for name, client in here.clients.items():
        assert client.seconds is not None
        assert client.seconds.compute == pytest.approx(work[name])
        assert client.seconds.transfer == 0.0
    assert sum(line.seconds for line in here.history) > 1000  # as it was measured


def test_a_run_that_was_stopped_keeps_its_seconds_and_its_pace(clock: SimpleNamespace, tmp_path: Path) -> None:
    federation = fs.load("digits").split("iid", clients=3, seed=0)
    method = counting(clock, 4, paced=True)
    straight = fs.run(method, federation, devices="slow:4,16")

    def stop(line: fs.result.Round, rounds: int) -> None:
        if line.round == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fs.run(method, federation, devices="slow:4,16", checkpoint=Checkpoint(tmp_path, every=2), on_round=stop)
    resumed = fs.run(method, federation, devices="slow:4,16", checkpoint=Checkpoint(tmp_path, resume=True))
    for name, client in straight.clients.items():
        again = resumed.clients[name].seconds
        assert client.seconds is not None
        assert again is not None
        assert dataclasses.astuple(again) == pytest.approx(dataclasses.astuple(client.seconds))
    assert [line.seconds for line in resumed.history] == pytest.approx([line.seconds for line in straight.history])
    with pytest.raises(fs.DataError, match=r"devices was 'slow:4,16' and is 'absent'"):
        fs.run(method, federation, checkpoint=Checkpoint(tmp_path, resume=True))


NETWORK: dict[str, Any] = {"network": "mlp:16,16,16", "block": 8}


@pytest.mark.parametrize("workers", [1, 2])
def test_seconds_of_clients_add_up_to_the_run_and_bytes_to_its_bytes(workers: int) -> None:
    federation = fs.load("digits").split(fs.dirichlet(0.5), clients=6, seed=0)
    devices = Devices((4, 16), mbit=10)
    result = fs.run(fs.FedACnnL(**NETWORK), federation, devices=devices, workers=workers)
    slower = devices.slower(list(federation.clients), 0)
    whole = sum(line.seconds for line in result.history) - result.seconds.server
    carried = 0.0
    for name, client in result.clients.items():
        times = client.seconds
        assert times is not None
        assert times.compute + times.waiting + times.transfer == pytest.approx(whole, abs=1e-5)
        carried += times.transfer * 1e6 * devices.mbit / slower[name] / 8
    assert carried == pytest.approx(result.bytes_up + result.bytes_down)


def test_devices_change_times_and_nothing_else(tmp_path: Path) -> None:
    federation = sample_federation()
    plain = fs.run(fs.FedHiP(), federation)
    found = [fs.run(fs.FedHiP(), federation, devices="slow:4,16", workers=workers) for workers in (1, 2)]
    for result in found:
        assert arrays.same(result.state, plain.state)
        assert result.clients == plain.clients
        assert all(arrays.same(result.models[n].arrays, plain.models[n].arrays) for n in plain.models)
        assert result.settings == {**plain.settings, "devices": "slow:4,16"}
    first, second = (result.json() for result in found)
    assert first["clients"] != second["clients"]  # by their seconds
    assert digest(first) == digest(second)
    changed = {**first, "clients": {n: {**c, "train": c["train"] + 1} for n, c in first["clients"].items()}}
    assert digest(changed) != digest(first)


def test_seconds_are_those_of_processes_too() -> None:
    pytest.importorskip("torch")
    federation = sample_federation()
    method = fs.FedAvg(model="mlp:8", rounds=2, epochs=1)
    one, two = (fs.run(method, federation, devices="slow:4", workers=workers) for workers in (1, 2))
    assert arrays.same(one.state, two.state)
    for result in (one, two):
        whole = sum(line.seconds for line in result.history) - result.seconds.server
        for client in result.clients.values():
            assert client.seconds is not None
            assert client.seconds.compute > 0
            assert client.seconds.busy + client.seconds.waiting == pytest.approx(whole, abs=1e-4)


def test_clients_that_are_not_asked_spend_nothing_and_absent_ones_change_nobody_elses_device() -> None:
    federation = fs.load("digits").split("iid", clients=8, seed=0)
    devices = Devices((50,), mbit=1e6)
    slower = devices.slower(list(federation.clients), 0)
    gone = sorted(federation.clients)[:2]
    result = fs.run(fs.AFL(), federation, devices=devices, absent=gone)
    assert set(result.clients) == set(federation.clients) - set(gone)
    fast = [c.seconds.compute for n, c in result.clients.items() if c.seconds and slower[n] == 1]
    slow = [c.seconds.compute for n, c in result.clients.items() if c.seconds and slower[n] == 50]
    assert min(slow) > max(fast)


def test_under_a_secure_sum_seconds_of_clients_stay_with_them() -> None:
    pytest.importorskip("cryptography")
    result = fs.run(fs.AFL(), sample_federation(), secure=fs.Secure(), devices="slow:4")
    assert {client.seconds for client in result.clients.values()} == {None}
    assert all(line.seconds > 0 for line in result.history)


# --- blocks that follow the clock


def test_the_printed_rule_swings_and_the_damped_one_settles() -> None:
    """A client that takes as long as it has blocks: FedACnnL (7) as printed, and our form of it."""
    printed, damped = Pace(rule="printed"), Pace()
    factors: dict[str, list[float]] = {"printed": [], "damped": []}
    for _ in range(12):
        for pace in (printed, damped):
            factors[pace.rule].append(pace.of("slow"))
        printed, damped = (
            pace.after({"a": 1.0, "b": 1.0, "slow": 10.0 / pace.of("slow")}) for pace in (printed, damped)
        )
    assert factors["printed"] == pytest.approx([1.0, 10.0] * 6)  # and so on for ever
    assert factors["damped"] == sorted(factors["damped"])
    assert factors["damped"][-1] == pytest.approx(10.0, rel=1e-2)


def test_the_printed_rule_is_equation_7() -> None:
    """B = ceil(seconds now / least seconds of the first round * first block), at most the limit."""
    pace = Pace(rule="printed").after({"a": 2.0, "b": 5.0}).after({"a": 1.0, "b": 7.0})
    assert (pace.least, pace.of("a"), pace.of("b"), pace.of("new")) == (2.0, 0.5, 3.5, 1.0)
    assert [layers.paced(7, 20, pace.of(name)) for name in "ab"] == [4, 20]
    assert layers.paced(7, 100, 3.5) == 25
    assert Pace(rule="printed").after({}) == Pace(rule="printed")
    assert Pace(rule="printed").after({"a": 0.0}).factors == {}
    with pytest.raises(fs.FedsolveError, match="unknown pace 'quick'"):
        Pace(rule="quick")


@pytest.mark.parametrize(
    "written", [{"factors": {"a": -1.0}, "rule": "damped", "least": 0.0}, {"factors": {}, "rule": "x", "least": 0.0}]
)
def test_a_pace_that_cannot_be_is_not_read(written: dict[str, Any]) -> None:
    with pytest.raises((ValueError, fs.FedsolveError)):
        Pace.read(**written)


def idle(result: fs.Result) -> float:
    return sum(client.seconds.waiting for client in result.clients.values() if client.seconds)


def test_adaptive_blocks_leave_less_to_wait_for(clock: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work that takes a second for each block, on devices: the idle time falls with both rules, and weights stay.

    The printed rule swings between the first block and the limit, so it gains less.
    """
    federation = fs.load("digits").split("iid", clients=3, seed=0)
    statistics, seen = layers.statistics, list[int]()

    def counted(reader: Any, stages: Any, model: Any, source: Any, labels: Any, depth: int) -> Any:
        clock.now += -(-len(labels) // reader.block)
        seen.append(reader.block)
        return statistics(reader, stages, model, source, labels, depth)

    monkeypatch.setattr(layers, "statistics", counted)
    settings: dict[str, Any] = {"network": "mlp:8,8,8,8,8,8", "block": 16, "limit": 256}
    words = "slow:4,16;mbit=100000"
    fixed = fs.run(fs.FedACnnL(**settings), federation, devices=words, workers=1)
    assert set(seen) == {16}
    seen.clear()
    damped = fs.run(fs.FedACnnL(**settings, adaptive=True), federation, devices=words, workers=1)
    assert max(seen) > 16
    printed = fs.run(fs.FedACnnL(**settings, adaptive=True, pace="printed"), federation, devices=words, workers=1)
    assert idle(damped) < idle(printed) < idle(fixed)
    assert idle(damped) < 0.5 * idle(fixed)
    slowest = [line.seconds for line in printed.history]
    assert any(later > 1.5 * earlier for earlier, later in pairwise(slowest))  # it swings
    steady = [line.seconds for line in damped.history]
    assert all(later <= earlier + 0.01 for earlier, later in pairwise(steady))
    for other in (damped, printed):
        for name in fixed.state:
            if name.endswith("weight"):
                np.testing.assert_allclose(other.state[name], fixed.state[name], rtol=1e-6, atol=1e-8)


# --- files


def test_seconds_of_clients_are_saved_and_older_files_have_none(tmp_path: Path) -> None:
    result = fs.run(fs.AFL(), sample_federation(), devices="slow:4")
    place = result.save(tmp_path / "run")
    again = fs.Result.load(place)
    for name, client in result.clients.items():
        assert client.seconds is not None
        assert again.clients[name].seconds == Times(**client.seconds.json())
    entry = ClientResult(1, 1, {"accuracy": 1.0}).json()
    assert "seconds" not in entry
    assert ClientResult.read(entry).seconds is None


@pytest.mark.parametrize(
    "seconds",
    [{"compute": 1.0, "waiting": 0.0}, {"compute": -1.0, "waiting": 0, "transfer": 0}, 3.0,
     {"compute": "1", "waiting": 0, "transfer": 0}, {"compute": 1, "waiting": 0, "transfer": 0, "more": 1}],
)  # fmt: skip
def test_seconds_that_cannot_be_are_refused(tmp_path: Path, seconds: Any) -> None:
    place = fs.run(fs.AFL(), sample_federation()).save(tmp_path / "run")
    content = unsealed(place / "result.json")
    next(iter(content["clients"].values()))["seconds"] = seconds
    (place / "result.json").write_text(json.dumps(content))
    with pytest.raises(fs.DataError, match=r"clients, .*seconds"):
        read_result(place / "result.json")


# --- the command line


def test_run_says_what_is_emulated(command: Command, tmp_path: Path) -> None:
    asked = ["run", "--method", "fedacnnl", "--set", "network=mlp:8", "--clients", "6", "--devices", "slow:4,16"]
    done = command(*asked, "--out", "out")
    assert done.code == 0
    content = json.loads((tmp_path / "out" / "result.json").read_text())
    seconds = sum(line["seconds"] for line in content["history"])
    assert f"on emulated devices, slow:4,16: {seconds:.2f} s, {seconds / 2:.2f} s a round; of their seconds" in done.out
    assert content["settings"]["devices"] == "slow:4,16"
    assert {name for each in content["clients"].values() for name in each["seconds"]} == {
        "compute", "waiting", "transfer"
    }  # fmt: skip
    (run,) = entries([tmp_path / "out"])
    assert run.seconds() == pytest.approx(seconds)
    plain = command(*asked[:-2], "--out", "plain")
    assert "emulated" not in plain.out
    (other,) = entries([tmp_path / "plain"])
    assert other.seconds() == json.loads((tmp_path / "plain" / "result.json").read_text())["seconds"]["total"]


@pytest.mark.parametrize(
    ("more", "told"),
    [(["--devices", "quick:4"], "devices must be as in slow:4,16"),
     (["--devices", "slow:4", "--runtime", "flower"], "--devices are for --runtime local")],
)  # fmt: skip
def test_devices_that_cannot_be_are_refused(command: Command, more: list[str], told: str) -> None:
    pytest.importorskip("flwr")
    done = command("run", "--method", "afl", *more)
    assert done.code == 2
    assert told in done.err


def test_a_comparison_on_devices_is_another_one(command: Command, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    asked = ["compare", "--methods", "afl", "--clients", "4", "--out", "cmp", "--no-baselines"]
    done = command(*asked, "--devices", "slow:4")
    assert done.code == 0
    assert " s emulated" in done.out.splitlines()[0]
    place = tmp_path / "cmp" / "afl-0"
    settings = Settings(method="afl", clients=4, alone=False, devices="slow:4")
    settings = dataclasses.replace(settings, alone=figures(place)["settings"]["alone"])
    assert compare.finished(place, settings) is not None
    assert compare.finished(place, dataclasses.replace(settings, devices=None)) is None
