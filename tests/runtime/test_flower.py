"""Flower's apps: every method gives the models it gives in process; absence, faults and disagreement are told."""

from __future__ import annotations

import json
import logging
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

import fedsolve as fs
from fedsolve import arrays, codec, parameters
from fedsolve.blas import packed_diagonal
from fedsolve.checks import sample_federation
from fedsolve.checks.probes import federation_for
from fedsolve.data import catalog
from fedsolve.data.folders import Images
from fedsolve.errors import DataError
from fedsolve.methods import CATALOGUE, create, method_class
from tests.contract.test_catalogue import SMALL

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedsolve[flower]'")

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.serverapp import ServerApp

from fedsolve import deploy
from fedsolve.ledger.store import Ledger
from fedsolve.runtime import job as jobs
from fedsolve.runtime import sites
from fedsolve.runtime.drive import drive
from fedsolve.runtime.flower import (
    Rules,
    client,
    inline,
    make_client_app,
    meet,
    meeting,
    serve,
    simulate,
    simulation,
    transport,
)
from fedsolve.runtime.flower.messages import packed
from fedsolve.runtime.flower.simulation import without_notice
from fedsolve.runtime.job import Job
from tests.runtime.grid import InProcessGrid


def close(found: fs.Result, wanted: fs.Result, bound: float) -> None:
    assert found.clients.keys() == wanted.clients.keys()
    pairs = [(found.models[name].arrays, wanted.models[name].arrays) for name in wanted.clients]
    pairs += [(found.state, wanted.state)]
    for mine, theirs in pairs:
        assert mine.keys() == theirs.keys()
        for name in theirs:
            scale = max(1.0, float(np.abs(theirs[name]).max(initial=0.0)))
            assert mine[name].dtype == theirs[name].dtype
            np.testing.assert_allclose(mine[name], theirs[name], rtol=0, atol=bound * scale)


def job_of(method: fs.Method, **settings: Any) -> Job:
    return Job(method.name, parameters.values(method), **settings)


# Of gradient methods, those whose messages are unlike: one for all, one each, replies that stay apart, losses alone.
UNLIKE = ("fedavg", "fedapa", "fedpac", "baffle", "pfedhn", "feddyn")
EVERY = [
    pytest.param(name, marks=() if name in UNLIKE or method_class(name).closed_form else pytest.mark.long)
    for name in CATALOGUE
]


@pytest.mark.filterwarnings("ignore:.*no finite coefficients are likeliest")  # classes that are easy to tell apart
@pytest.mark.parametrize("name", EVERY)
def test_every_method_gives_the_models_it_gives_in_process(name: str) -> None:
    method = create(name, SMALL.get(name))
    federation = federation_for(method, sizes=(40, 25, 60, 30))
    wanted = fs.run(method, federation, seed=3)
    rounds: list[int] = []
    found = simulate(job_of(method, seed=3), lambda: federation, on_round=lambda line, of: rounds.append(line.round))
    close(found, wanted, 0.0)
    assert found.settings["runtime"] == "flower:inline"
    assert [line.accuracy for line in found.history] == [line.accuracy for line in wanted.history]
    assert rounds == [line.round for line in found.history]
    assert (found.bytes_up, found.bytes_down) == (wanted.bytes_up, wanted.bytes_down)
    assert found.data["fingerprint"] == wanted.data["fingerprint"]


RAY = pytest.param("flower:ray", marks=pytest.mark.long)  # it takes half a minute to start, and a minute to run


@pytest.mark.parametrize("runtime", ["flower", RAY])
def test_a_run_through_flower_gives_the_same_bits_and_the_same_ledger(tmp_path: Path, runtime: str) -> None:
    if runtime == "flower:ray":
        pytest.importorskip("ray", reason="Ray is not installed: pip install 'fedsolve[flower]'")
    said = {}
    for each in ("local", runtime):
        command = [sys.executable, "-m", "fedsolve", "run", "--clients", "4", "--runtime", each, "--out", each]
        command += ["--ledger", f"{each}.db"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=280)
        assert done.returncode == 0, done.stderr
        assert "DEPRECATED" not in done.stderr + done.stdout
        said[each] = " ".join(done.stdout.split())
    local, flower = (fs.Result.load(tmp_path / each) for each in ("local", runtime))
    close(flower, local, 0.0)
    assert flower.clients == local.clients
    assert flower.settings["runtime"] == ("flower:inline" if runtime == "flower" else runtime)
    words = "through Flower's apps on Ray" if runtime == "flower:ray" else "through Flower's apps in this process"
    assert words in said[runtime] and "Flower" not in said["local"]
    assert flower.data == local.data
    with Ledger(tmp_path / "local.db") as one, Ledger(tmp_path / f"{runtime}.db") as other:
        mine, theirs = ({m.client: m.digest for m in ledger.members()} for ledger in (one, other))
    assert len(mine) == 4
    assert mine == theirs


FAULTY = """
import os, sys
from fedsolve.runtime import offline
offline.switch_off()
from fedsolve.checks import sample_federation
from fedsolve.errors import DataError
from fedsolve.runtime.flower import simulate
from fedsolve.runtime.job import Job

def load():
    # Raise for the first request: after a call by the engine itself, and a hello for each client.
    file = os.open(sys.argv[2], os.O_APPEND | os.O_CREAT | os.O_WRONLY)
    os.write(file, b".")
    place = os.lseek(file, 0, os.SEEK_CUR)  # of this byte, whoever else writes
    os.close(file)
    if place == 5:
        raise RuntimeError("out of order")
    return sample_federation(sizes=(30, 30, 30))

try:
    simulate(Job("afl"), load, engine=sys.argv[1])
except DataError as error:
    print(error)
"""


@pytest.mark.parametrize("runtime", ["flower:inline", RAY])
def test_a_client_whose_app_raises_is_named(tmp_path: Path, runtime: str) -> None:
    if runtime == "flower:ray":
        pytest.importorskip("ray", reason="Ray is not installed: pip install 'fedsolve[flower]'")
    command = [sys.executable, "-c", FAULTY.replace("sys.argv[2]", repr(str(tmp_path / "calls")))]
    command.append(runtime.partition(":")[2])
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=280)
    assert re.search(r"2 of 3 clients answered.*\(site-\d: it raised .*out of order", done.stdout), (
        done.stdout + done.stderr
    )


def test_what_would_not_travel_fails_in_one_process_too() -> None:
    """A message is taken apart and put together by Flower: equal, but no object of it is shared."""
    grid = inline.InlineGrid(make_client_app(), {1: {}})
    message = Message(RecordDict({"body": packed(b"abc")}), 1, "query.request", ttl=60.0)
    (identity,) = grid.push_messages([message])
    there = grid._waiting[identity]
    assert there is not message and there.metadata.message_id == identity
    assert there.content["body"] == message.content["body"] and there.content["body"] is not message.content["body"]
    message.content["words"] = ConfigRecord({"number": 2**70})  # a whole number to Python, too large for the wire
    with pytest.raises(ValueError, match="range"):
        grid.push_messages([message])


def test_where_clients_have_much_to_do_they_get_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    federation = sample_federation(sizes=(30, 30))
    numbers = sum(client.train.inputs.size for client in federation.clients.values())
    monkeypatch.setattr(simulation, "cores", lambda: 2)
    monkeypatch.setattr(simulation, "find_spec", lambda name: name)
    chosen = simulation.engine_for
    monkeypatch.setattr(simulation, "LARGE", 8 * numbers + 1)
    assert chosen(fs.AFL(), federation) == "inline"
    monkeypatch.setattr(simulation, "LARGE", 8 * numbers)
    assert chosen(fs.AFL(), federation) == "ray"
    monkeypatch.setattr(simulation, "LARGE", 8 * numbers * 6)
    assert chosen(create("fedavg", {"rounds": 3, "epochs": 2}), federation) == "ray"  # three rounds of two passes
    assert chosen(create("fedavg", {"rounds": 5, "epochs": 1}), federation) == "inline"
    monkeypatch.setattr(simulation, "cores", lambda: 1)
    assert chosen(fs.AFL(), federation) == "inline"


def test_of_flowers_log_only_the_notice_on_its_engine_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    from flwr.supercore.logger import warn_deprecated_feature

    lines: list[str] = []
    handler, log = logging.Handler(), logging.getLogger("flwr")
    monkeypatch.setattr(handler, "emit", lambda record: lines.append(record.getMessage()))
    monkeypatch.setattr(log, "handlers", [handler])
    with without_notice():
        warn_deprecated_feature("The `run_simulation` function is deprecated")
        warn_deprecated_feature("another function")
        log.info("a line")
    warn_deprecated_feature("The `run_simulation` function is deprecated")
    assert ["another function" in line for line in lines] == [True, False, False]
    assert [line == "a line" for line in lines] == [False, True, False]
    assert "run_simulation" in lines[2]


# --- sites with files of their own ---


def wards(folder: Path, count: int = 3, **changes: dict[str, Any]) -> dict[int, dict[str, str]]:
    """Files of so many wards, and the configuration of their nodes; `changes` replace arrays of one."""
    rng = np.random.default_rng(1)
    nodes = {}
    for number, letter in enumerate("abcdefgh"[:count]):
        name = f"ward-{letter}"
        x = rng.normal(size=(60, 5)) + number
        y = np.argmax(x[:, :3] + rng.normal(size=(60, 3)), axis=1)
        np.savez(folder / f"{name}.npz", **{"x": x, "y": y, **changes.get(letter, {})})
        config = {"client": name, "data": str(folder / f"{name}.npz"), "state": str(folder / name)}
        nodes[1000 - number] = config
    return nodes


def pooled_run(folder: Path, method: fs.Method, names: tuple[str, ...], **settings: Any) -> fs.Result:
    """The same in one process: all files in one table, split by client."""
    parts = [np.load(folder / f"{name}.npz") for name in names]
    owner = np.repeat(names, [len(part["y"]) for part in parts])
    x, y = (np.concatenate([part[key] for part in parts]) for key in ("x", "y"))
    np.savez(folder / "all.npz", x=x, y=y, client=owner)
    return fs.run(method, fs.load(str(folder / "all.npz")).split("by-client"), **settings)  # split as sites do


QUICK: dict[str, Any] = {"wait": 5.0, "timeout": 5.0}


def served(
    grid: InProcessGrid, method: fs.Method, said: list[str] | None = None, scratch: Path | None = None, **rules: Any
) -> Any:
    job = job_of(method, seed=4)
    say = (said if said is not None else []).append
    return serve(grid, job, Rules(**{**QUICK, **rules}), say, scratch=scratch)[0]


def keyed(grid: InProcessGrid, folder: Path) -> dict[str, Any]:
    """Give each node a key; the rules under which the first request travels with the hello."""
    names = {node: config["client"] for node, config in grid.nodes.items()}
    grid.keys = {node: f"KEY {name}\n".encode() for node, name in names.items()}
    keys = {name: f"KEY {name}" for name in names.values()}
    return {"sites": tuple(sorted(keys)), "keys": keys, "scratch": folder}


def test_sites_with_their_own_files_give_what_one_process_gives(tmp_path: Path) -> None:
    nodes = wards(tmp_path)
    grid = InProcessGrid(make_client_app(), nodes)
    outcome = served(grid, fs.FedHiP(beta=1.0, intercept=False))
    wanted = pooled_run(tmp_path, fs.FedHiP(beta=1.0, intercept=False), ("ward-a", "ward-b", "ward-c"), seed=4)
    assert arrays.same(outcome.state, wanted.state)
    assert {n: c.accuracy for n, c in outcome.clients.items()} == {n: c.accuracy for n, c in wanted.clients.items()}
    for name, model in wanted.models.items():
        found = fs.load_model(tmp_path / name / "models" / f"{name}.safetensors")
        assert arrays.same(found.arrays, model.arrays)
        assert found.owner == name


def test_personal_models_and_private_state_stay_at_the_site(tmp_path: Path) -> None:
    """The server's outcome holds no array of a personal model, and each site's folder holds its own alone."""
    nodes = wards(tmp_path)
    outcome = served(InProcessGrid(make_client_app(), nodes), fs.FedHiP(alpha=50.0, beta=1.0, intercept=False))
    for config in nodes.values():
        (model,) = (Path(config["state"]) / "models").iterdir()
        assert model.name == f"{config['client']}.safetensors"
        own = fs.load_model(model).arrays["weight"]
        for array in outcome.state.values():
            assert array.shape != own.shape or not np.array_equal(array, own)


def test_old_private_state_is_forgotten(tmp_path: Path) -> None:
    nodes = wards(tmp_path)
    for number in range(6):
        (tmp_path / "ward-a" / "runs" / str(number)).mkdir(parents=True)
    served(InProcessGrid(make_client_app(), nodes), fs.AFL(ridge=0.0, intercept=False))
    assert len(list((tmp_path / "ward-a" / "runs").iterdir())) == sites.KEPT_RUNS + 1


def test_named_classes_and_columns_are_brought_into_one_order(tmp_path: Path) -> None:
    """A site that lacks a class and has its columns in another order gives what one table would have given."""
    rng = np.random.default_rng(2)
    x = rng.normal(size=(90, 3))
    y = np.array(["calm", "ill", "well"])[np.argmax(x + 0.3 * rng.normal(size=x.shape), axis=1)]
    y[:30][y[:30] == "ill"] = "well"
    nodes = {}
    for number, order in enumerate(([0, 1, 2], [2, 0, 1], [0, 2, 1])):
        rows = slice(30 * number, 30 * number + 30)
        columns = ["age", "pulse", "weight"]
        lines = [",".join([columns[i] for i in order] + ["label"])]
        lines += [
            ",".join([*(repr(float(v)) for v in row[order]), label])
            for row, label in zip(x[rows], y[rows], strict=True)
        ]
        (tmp_path / f"{number}.csv").write_text("\n".join(lines) + "\n")
        nodes[number] = {
            "client": f"s{number}",
            "data": str(tmp_path / f"{number}.csv"),
            "state": str(tmp_path / f"s{number}"),
        }
    outcome = served(InProcessGrid(make_client_app(), nodes), fs.AFL(ridge=0.0, intercept=False))
    owner = np.repeat(["s0", "s1", "s2"], 30)
    np.savez(tmp_path / "all.npz", x=x, y=y, client=owner)
    wanted = fs.run(fs.AFL(ridge=0.0, intercept=False), fs.load(str(tmp_path / "all.npz")).split("by-client"), seed=4)
    assert arrays.same(outcome.state, wanted.state)
    model = fs.load_model(tmp_path / "s1" / "models" / "s1.safetensors")
    assert model.task.class_names == ("calm", "ill", "well")
    assert model.task.feature_names == ("age", "pulse", "weight")


def test_the_window_bounds_what_is_in_flight(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    federation = sample_federation(sizes=(10,) * 12)
    grids = []

    def small(server: Any, client: Any, nodes: int) -> None:
        grid = InProcessGrid(client, {i: {"partition-id": i} for i in range(nodes)})
        grids.append(grid)
        act = server._main  # the hello of all nodes goes out at once: it is small
        grid.most = 0
        act(grid, None)

    monkeypatch.setattr(transport, "IN_FLIGHT", 1)
    pushed: list[int] = []
    original = transport.FlowerTransport._send

    def send(self: Any, *args: Any) -> Any:
        pushed.append(len(self._grid._replies))
        return original(self, *args)

    monkeypatch.setattr(transport.FlowerTransport, "_send", send)
    monkeypatch.setitem(simulation.ENGINES, "inline", small)
    simulate(job_of(fs.AFL(ridge=0.0, intercept=False)), lambda: federation)
    assert max(pushed) == transport.WINDOW[0] - 1
    monkeypatch.setattr(transport, "IN_FLIGHT", 10**9)
    pushed.clear()
    simulate(job_of(fs.AFL(ridge=0.0, intercept=False)), lambda: federation)
    assert max(pushed) == 11


# --- refusals: a sentence for the operator ---


def test_two_nodes_with_one_name_are_both_left_out(tmp_path: Path) -> None:
    """Nobody can tell which of them is the site, and the others need not wait until somebody can."""
    nodes = wards(tmp_path, 4)
    nodes[5] = nodes[999]
    outcome = served(InProcessGrid(make_client_app(), nodes), fs.AFL(ridge=0.0, intercept=False))
    assert outcome.failed == {"ward-b": "two nodes say that they are site 'ward-b'; give each site a name of its own"}
    assert arrays.same(outcome.state, rest_of(tmp_path, "ward-b").state)


def test_too_few_nodes_are_refused_and_the_missing_named(tmp_path: Path) -> None:
    nodes, said = wards(tmp_path, 2), list[str]()
    grid = InProcessGrid(make_client_app(), nodes)
    with pytest.raises(DataError, match=r"2 of 4 expected sites are there after \d+ s, without ward-x, ward-y"):
        served(
            grid,
            fs.AFL(ridge=0.0, intercept=False),
            said,
            sites=("ward-a", "ward-b", "ward-x", "ward-y"),
            min_clients=3,
            wait=0.5,
        )
    assert said == ["2 sites are there, waiting for ward-x, ward-y"] or said[-1].endswith("ward-x, ward-y")
    outcome = served(
        grid, fs.AFL(ridge=0.0, intercept=False), said, sites=("ward-a", "ward-b", "ward-x"), min_clients=2, wait=0.5
    )
    assert set(outcome.clients) == {"ward-a", "ward-b"}
    assert said[-2].startswith("starting without ward-x")


def test_a_site_that_nobody_expects_is_left_alone(tmp_path: Path) -> None:
    nodes = wards(tmp_path, 3)
    outcome = served(
        InProcessGrid(make_client_app(), nodes), fs.AFL(ridge=0.0, intercept=False), sites=("ward-a", "ward-b")
    )
    assert set(outcome.clients) == {"ward-a", "ward-b"}


def test_a_site_with_other_features_is_left_out_by_what_differs(tmp_path: Path) -> None:
    nodes, said = wards(tmp_path), list[str]()
    nodes[999]["features"] = "random:20,tanh,1"
    grid = InProcessGrid(make_client_app(), nodes)
    job = Job("afl", features="random:20,relu,1")
    outcome = serve(grid, job, Rules(**QUICK), said.append)[0]
    reason = "it has other features than the rest: random:20,tanh,1 here, random:20,relu,1 there"
    assert outcome.failed == {"ward-b": reason}
    assert f"left out: ward-b: {reason}" in said
    assert set(outcome.clients) == {"ward-a", "ward-c"}
    wide = wards(tmp_path, 4, c={"x": np.ones((60, 6))})
    outcome = served(InProcessGrid(make_client_app(), wide), fs.AFL(ridge=0.0, intercept=False))
    assert re.search(r"it has other features than the rest: .*\(6,\) here, \(5,\) there", outcome.failed["ward-c"])
    assert arrays.same(outcome.state, rest_of(tmp_path, "ward-c").state)


def test_without_a_majority_a_difference_stops_the_run_and_both_sides_are_said(tmp_path: Path) -> None:
    """Of two, or where half of the expected sites differ, nobody can tell who is right."""
    nodes = wards(tmp_path, 2)
    nodes[999]["features"] = "random:20,tanh,1"
    job = Job("afl", features="random:20,relu,1")
    with pytest.raises(DataError, match=r"site 'ward-b' has other features.*random:20,tanh,1 here, random:20,relu,1"):
        serve(InProcessGrid(make_client_app(), nodes), job, Rules(**QUICK), print)
    texts = {letter: {"y": np.array(["ill", "well", "calm"] * 20)} for letter in "bc"}
    said = "labels of site 'ward-b' are texts, those of site 'ward-a' numbers.*2 of 4 sites are alike, and 3 must be"
    with pytest.raises(DataError, match=said):
        served(InProcessGrid(make_client_app(), wards(tmp_path, 4, **texts)), fs.AFL(ridge=0.0, intercept=False))
    grid = InProcessGrid(make_client_app(), wards(tmp_path, 3, b=texts["b"]))
    expected = ("ward-a", "ward-b", "ward-c", "ward-y")
    with pytest.raises(DataError, match=r"2 of 3 sites are alike, and 3 must be"):
        served(grid, fs.AFL(ridge=0.0, intercept=False), sites=expected, wait=0.2)


def test_a_site_with_another_kind_of_labels_is_left_out(tmp_path: Path) -> None:
    nodes = wards(tmp_path, 4, b={"y": np.array(["ill", "well", "calm"] * 20)})
    outcome = served(InProcessGrid(make_client_app(), nodes), fs.AFL(ridge=0.0, intercept=False))
    assert outcome.failed == {"ward-b": "its labels are texts, those of the rest numbers"}
    assert arrays.same(outcome.state, rest_of(tmp_path, "ward-b").state)


@pytest.mark.parametrize("opened", [False, True], ids=["hello", "opening"])
def test_a_site_is_left_out_on_purpose(tmp_path: Path, opened: bool) -> None:
    """Whatever it says, here even another kind of labels, which would stop two of three."""
    nodes = wards(tmp_path, 4, b={"y": np.array(["ill", "well", "calm"] * 20)})
    grid, said = InProcessGrid(make_client_app(), nodes), list[str]()
    outcome = served(
        grid, fs.AFL(ridge=0.0, intercept=False), said, **(keyed(grid, tmp_path) if opened else {}), exclude=("ward-b",)
    )
    assert outcome.failed == {"ward-b": "it was left out on purpose"}
    assert "left out: ward-b: it was left out on purpose" in said
    assert arrays.same(outcome.state, rest_of(tmp_path, "ward-b").state)


def test_another_version_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    grid = InProcessGrid(make_client_app(), wards(tmp_path))
    push = grid.push_messages

    def from_another_server(messages: Any) -> Any:
        for message in messages:
            message.content.config_records["head"]["version"] = "9.9"
        return push(messages)

    monkeypatch.setattr(grid, "push_messages", from_another_server)
    monkeypatch.setattr(client, "VERSION", "0.0.9")
    said = "it has fedsolve .*, the server 9.9; install the same everywhere"
    with pytest.raises(DataError, match=said):
        served(grid, fs.AFL(ridge=0.0, intercept=False), wait=0.5)


def test_another_version_at_a_site_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sites, "VERSION", "0.0.9")  # what a site says of itself
    with pytest.raises(DataError, match=r"0 of 2 needed sites .*; ward-a: it has fedsolve 0.0.9, the server"):
        served(InProcessGrid(make_client_app(), wards(tmp_path)), fs.AFL(ridge=0.0, intercept=False), wait=0.2)


def test_one_site_with_another_version_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    grid = InProcessGrid(make_client_app(), wards(tmp_path, 4))
    push = grid.push_messages

    def one_is_old(messages: Any) -> Any:
        for message in messages:
            if message.metadata.dst_node_id == 999:
                message.content.config_records["head"]["version"] = "9.9"
            yield from push([message])

    monkeypatch.setattr(grid, "push_messages", one_is_old)
    outcome = served(grid, fs.AFL(ridge=0.0, intercept=False), sites=tuple(f"ward-{letter}" for letter in "abcd"))
    assert re.search("it has fedsolve .*, the server 9.9; install the same everywhere", outcome.failed["ward-b"])
    assert arrays.same(outcome.state, rest_of(tmp_path, "ward-b").state)


def test_a_name_belongs_to_a_key(tmp_path: Path) -> None:
    grid = InProcessGrid(make_client_app(), wards(tmp_path, 2))
    grid.keys = {1000: b"KEY A\n", 999: b"KEY B\n"}
    served(grid, fs.AFL(ridge=0.0, intercept=False), keys={"ward-a": "KEY A", "ward-b": "KEY B"})
    with pytest.raises(DataError, match="node 999: it has another key than site 'ward-b', and says that it is that"):
        served(grid, fs.AFL(ridge=0.0, intercept=False), keys={"ward-a": "KEY A", "ward-b": "KEY C"}, wait=0.2)


def test_a_node_with_another_key_costs_the_site_it_claims_to_be_nothing(tmp_path: Path) -> None:
    nodes = wards(tmp_path, 3)
    nodes[5] = nodes[999]
    grid, said = InProcessGrid(make_client_app(), nodes), list[str]()
    rules = keyed(grid, tmp_path) | {"scratch": None}
    grid.keys[5] = b"KEY of nobody"
    outcome = served(grid, fs.AFL(ridge=0.0, intercept=False), said, **rules)
    assert set(outcome.clients) == {"ward-a", "ward-b", "ward-c"}
    assert outcome.failed == {"node 5": "it has another key than site 'ward-b', and says that it is that site"}
    nodes[998]["client"] = "ward-a"  # a known key with another name
    outcome = served(_regrid(grid, nodes), fs.AFL(ridge=0.0, intercept=False), said, **rules)
    assert set(outcome.clients) == {"ward-a", "ward-b"}
    assert outcome.failed["ward-c"] == "its node says that it is site 'ward-a'"


def test_a_node_without_data_is_named_with_its_reason(tmp_path: Path) -> None:
    nodes, said = wards(tmp_path), list[str]()
    nodes[998]["data"] = str(tmp_path / "nothing.npz")
    served(
        InProcessGrid(make_client_app(), nodes),
        fs.AFL(ridge=0.0, intercept=False),
        said,
        sites=("ward-a", "ward-b", "ward-c"),
        wait=0.5,
    )
    assert any("starting without ward-c" in line and "there is no file" in line for line in said)


# --- faults ---


def rest_of(folder: Path, missing: str) -> fs.Result:
    return pooled_run(
        folder, fs.AFL(ridge=0.0, intercept=False), tuple(f"ward-{c}" for c in "abcd" if f"ward-{c}" != missing), seed=4
    )


def spoilt(kind: str) -> Any:
    def spoil(node: int, message: Any, reply: Any) -> Any:
        body = reply.content.array_records.get("body")
        if node != 999 or body is None:  # ward-b
            return reply
        held, head = codec.read(body["bytes"].data)
        if "triangle" not in held:
            return reply
        full = np.arange(25.0).reshape(5, 5)
        indefinite = held["triangle"].copy()
        indefinite[packed_diagonal(5)[3]] *= 0.1  # of an exact multiple of the others' it would still be one
        if kind == "raises":
            raise RuntimeError("out of order")
        if kind == "hangs":
            return None
        changed = {
            "nan": {**held, "cross": held["cross"] * np.nan},
            "shape": {**held, "cross": held["cross"][:, :2]},
            "asymmetric": {**{n: a for n, a in held.items() if n != "triangle"}, "gram": full},
            "asymmetric in place": {**held, "triangle": full},
            "indefinite": {**held, "triangle": indefinite},
            "negative": {**held, "triangle": -held["triangle"]},
        }
        if kind == "no bytes":
            reply.content.array_records.pop("body")
        elif kind == "empty":
            reply.content["body"] = ArrayRecord()
        else:
            data = b"nonsense" if kind == "nonsense" else codec.encode(changed[kind], head)
            reply.content["body"] = packed(data)
        return reply

    return spoil


FAULTS = {
    "raises": "it raised .*out of order",
    "hangs": "no answer within 2 s",
    "nan": "'cross' has values that are not finite",
    "shape": r"cross <f8\[5, 2\].* and F.Y is \[5, 3\] for this task",
    "asymmetric": r"gram <f8\[5, 5\].* where those of most have .*triangle",
    "asymmetric in place": r"triangle <f8\[5, 5\] where those of most have",
    "indefinite": "its F'F is not positive semi-definite",
    "negative": r"the squares of feature \d sum to -",
    "nonsense": "its reply is damaged",
    "no bytes": "its answer has no content",
    "empty": "its answer has no content",
}


@pytest.mark.parametrize("opened", [False, True], ids=["hello", "opening"])
@pytest.mark.parametrize("kind", list(FAULTS))
def test_a_site_at_fault_is_named_and_the_rest_is_exact(tmp_path: Path, kind: str, opened: bool) -> None:
    nodes, said = wards(tmp_path, 4), list[str]()
    grid = InProcessGrid(make_client_app(), nodes, spoilt(kind))
    rules = {"timeout": 2.0, **(keyed(grid, tmp_path) if opened else {})}
    outcome = served(grid, fs.AFL(ridge=0.0, intercept=False), said, **rules)
    assert outcome.history[0].missing == ("ward-b",)
    assert re.search(FAULTS[kind], outcome.failed["ward-b"]), outcome.failed
    assert any(line.startswith("left out: ward-b: ") for line in said)
    assert arrays.same(outcome.state, rest_of(tmp_path, "ward-b").state)
    with pytest.raises(DataError, match=r"only 3 of 4 clients answered in round 1, fewer than the 4 .*ward-b"):
        served(grid, fs.AFL(ridge=0.0, intercept=False), **rules, min_clients=4)


@pytest.mark.parametrize("name", ["afl", "apfl", "fedhip", "fedprior", "local"])
def test_a_method_with_one_round_takes_two_messages_a_site(tmp_path: Path, name: str) -> None:
    """The first request travels with the hello, and the models are bit for bit those of one process."""
    grid = InProcessGrid(make_client_app(), wards(tmp_path))
    rules, method = keyed(grid, tmp_path), create(name, SMALL.get(name))
    outcome = served(grid, method, **rules)
    assert grid.pushed == 2 * 3
    wanted = pooled_run(tmp_path, method, rules["sites"], seed=4)
    assert arrays.same(outcome.state, wanted.state)
    assert (outcome.history[0].bytes_up, outcome.history[0].bytes_down) == (wanted.bytes_up, wanted.bytes_down)
    for site in rules["sites"]:
        found = fs.load_model(tmp_path / site / "models" / f"{site}.safetensors")
        assert arrays.same(found.arrays, wanted.models[site].arrays)
    assert not list(tmp_path.glob(".fedsolve-*"))


@pytest.mark.parametrize(
    ("name", "settings", "messages"),
    [
        ("local", {"model": "mlp:4"}, 2),  # it sends nothing, whatever the task
        ("local", {"model": "cnn:4"}, 3),  # its network takes no tasks but those with pictures
        ("fedavg", {"model": "mlp:4"}, 3),  # its first message is a network for the task
    ],
)
def test_networks_trained_for_one_round_give_what_one_process_gives(
    tmp_path: Path, name: str, settings: dict[str, Any], messages: int
) -> None:
    pytest.importorskip("torch", reason="torch is not installed: pip install 'fedsolve[torch]'")
    rng = np.random.default_rng(5)
    pictures: dict[str, Any] = {letter: {"x": rng.normal(size=(60, 8, 8)), "y": np.arange(60) % 3} for letter in "abc"}
    grid = InProcessGrid(make_client_app(), wards(tmp_path, **pictures))
    rules, method = keyed(grid, tmp_path), create(name, {**settings, "rounds": 1, "epochs": 1})
    outcome = served(grid, method, **rules)
    assert not outcome.failed
    assert grid.pushed == messages * 3
    expected = pooled_run(tmp_path, method, rules["sites"], seed=4)
    for site in rules["sites"]:
        model = fs.load_model(tmp_path / site / "models" / f"{site}.safetensors").arrays
        assert model.keys() == expected.models[site].arrays.keys()
        for key, array in expected.models[site].arrays.items():
            np.testing.assert_allclose(model[key], array, rtol=0, atol=1e-6)


@pytest.mark.parametrize("opened", [False, True], ids=["hello", "opening"])
def test_a_site_reads_its_data_once_per_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, opened: bool) -> None:
    """Files of arrays and folders of pictures alike; a hello that carries the first request is one message."""
    image = pytest.importorskip("PIL.Image", reason="Pillow is not installed: pip install 'fedsolve[images]'")
    reads = {"load": 0, "stacked": 0}

    def counted(key: str, function: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            reads[key] += 1
            return function(*args, **kwargs)

        return call

    monkeypatch.setattr(catalog, "load", counted("load", catalog.load))
    monkeypatch.setattr(Images, "stacked", counted("stacked", Images.stacked))
    rng, nodes = np.random.default_rng(6), wards(tmp_path)
    for config in nodes.values():
        for number in range(24):
            path = tmp_path / f"{config['client']}-pictures" / f"class-{number % 3}" / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            image.fromarray(rng.integers(256, size=(4, 4), dtype=np.uint8)).save(path)
    pictures = {node: {**c, "data": str(tmp_path / f"{c['client']}-pictures")} for node, c in nodes.items()}
    for configs, stacked in ((nodes, False), (pictures, True)):
        grid = InProcessGrid(make_client_app(), configs)
        reads |= {"load": 0, "stacked": 0}
        outcome = served(grid, fs.AFL(ridge=0.0, intercept=False), **(keyed(grid, tmp_path) if opened else {}))
        assert not outcome.failed
        assert grid.pushed == (2 if opened else 3) * 3
        assert reads == {"load": grid.pushed, "stacked": grid.pushed if stacked else 0}


def test_an_answer_under_other_terms_is_asked_for_again(tmp_path: Path) -> None:
    """A site that lacks a class answers early under terms of its own; it is asked once more, and nothing is lost."""
    few = np.arange(60) % 2
    grid = InProcessGrid(make_client_app(), wards(tmp_path, b={"y": few}))
    rules = keyed(grid, tmp_path)
    outcome = served(grid, fs.FedHiP(beta=1.0, intercept=False), **rules)
    assert grid.pushed == 2 * 3 + 1
    wanted = pooled_run(tmp_path, fs.FedHiP(beta=1.0, intercept=False), rules["sites"], seed=4)
    assert arrays.same(outcome.state, wanted.state)
    found = fs.load_model(tmp_path / "ward-b" / "models" / "ward-b.safetensors")
    assert arrays.same(found.arrays, wanted.models["ward-b"].arrays)


def test_a_site_with_other_features_sends_no_statistics(tmp_path: Path) -> None:
    nodes, sent = wards(tmp_path), []

    def note(node: int, message: Any, reply: Any) -> Any:
        sent.append((node, "body" in reply.content))
        return reply

    nodes[999]["features"] = "random:20,tanh,1"
    grid = InProcessGrid(make_client_app(), nodes, note)
    rules = keyed(grid, tmp_path)
    scratch = rules.pop("scratch")
    job = Job("afl", features="random:20,relu,1")
    outcome = serve(grid, job, Rules(**QUICK, **rules), print, scratch=scratch)[0]
    assert set(outcome.failed) == {"ward-b"}
    assert {node for node, body in sent if body} == {1000, 998}
    assert [node for node, _ in sent].count(999) == 1


def test_refusals_reach_the_operator_with_an_opening_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nodes, said = wards(tmp_path), list[str]()
    grid = InProcessGrid(make_client_app(), nodes)
    rules = keyed(grid, tmp_path)
    nodes[998]["data"] = str(tmp_path / "nothing.npz")
    served(grid := _regrid(grid, nodes), fs.AFL(ridge=0.0, intercept=False), said, **rules, wait=0.5)
    assert any("starting without ward-c" in line and "there is no file" in line for line in said)
    nodes[999]["client"] = "ward-a"
    with pytest.raises(DataError, match=r"1 of 3 expected sites .*; ward-b: its node says that it is site 'ward-a'"):
        served(_regrid(grid, nodes), fs.AFL(ridge=0.0, intercept=False), **rules, wait=0.5)
    del nodes[999], nodes[998]
    with pytest.raises(DataError, match=r"1 of 3 expected sites are there after \d+ s, without ward-b, ward-c"):
        served(_regrid(grid, nodes), fs.AFL(ridge=0.0, intercept=False), **rules, wait=0.5)
    monkeypatch.setattr(sites, "VERSION", "0.0.9")
    with pytest.raises(DataError, match=r"ward-a: it has fedsolve 0.0.9, the server"):
        served(_regrid(grid, nodes), fs.AFL(ridge=0.0, intercept=False), **rules, wait=0.2)


def test_if_all_sites_fail_at_once_the_operator_is_told_why(tmp_path: Path) -> None:
    def broken(node: int, message: Any, reply: Any) -> Any:
        raise RuntimeError("out of order")

    grid = InProcessGrid(make_client_app(), wards(tmp_path), broken)
    with pytest.raises(DataError, match=r"0 of 3 expected sites are there.*ward-a: it raised .*out of order"):
        served(grid, fs.AFL(ridge=0.0, intercept=False), **keyed(grid, tmp_path))


def _regrid(grid: InProcessGrid, nodes: dict[int, dict[str, str]]) -> InProcessGrid:
    """The same keys with other nodes."""
    changed = InProcessGrid(make_client_app(), nodes)
    changed.keys = {node: grid.keys[node] for node in nodes}
    return changed


def test_early_answers_keep_to_the_window_and_to_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At most a few unanswered questions, and past the limit of the disk a site is only asked for its name."""
    grid = InProcessGrid(make_client_app(), wards(tmp_path, 8))
    rules = keyed(grid, tmp_path)
    monkeypatch.setattr(transport, "IN_FLIGHT", 1)
    outcome = served(grid, fs.AFL(ridge=0.0, intercept=False), **rules)
    assert grid.most == transport.WINDOW[0]
    assert grid.pushed == 2 * 8
    monkeypatch.setattr(meeting, "SPOOL", 1)
    again = InProcessGrid(make_client_app(), grid.nodes)
    again.keys = grid.keys
    assert arrays.same(served(again, fs.AFL(ridge=0.0, intercept=False), **rules).state, outcome.state)
    assert 2 * 8 < again.pushed <= 3 * 8


def test_a_node_that_left_fails_at_once_and_takes_part_in_the_next_run(tmp_path: Path) -> None:
    nodes = wards(tmp_path, 4)
    grid = InProcessGrid(make_client_app(), nodes)
    job, rules = job_of(fs.AFL(ridge=0.0, intercept=False), seed=4), Rules(**QUICK)
    met, told, *_ = meet(grid, job, rules, print)
    task = jobs.agree(told, job)
    gone = grid.nodes.pop(999)
    way = transport.FlowerTransport(grid, met, job, task, 60.0)
    outcome = drive(fs.AFL(ridge=0.0, intercept=False), task, way, seed=4, tolerate=True)
    assert outcome.failed == {"ward-b": "its node is not connected"}
    assert arrays.same(outcome.state, rest_of(tmp_path, "ward-b").state)
    grid.nodes[999] = gone
    assert not served(grid, fs.AFL(ridge=0.0, intercept=False)).failed


def test_a_site_that_hangs_costs_nobody_else_its_place(tmp_path: Path) -> None:
    """Answers are folded in order: those behind one that never comes must outlive its time."""

    def first_hangs(node: int, message: Any, reply: Any) -> Any:
        asked = message.metadata.message_type == "query.request"
        return None if node == 1000 and asked else reply  # ward-a

    outcome = served(
        InProcessGrid(make_client_app(), wards(tmp_path, 4), first_hangs),
        fs.AFL(ridge=0.0, intercept=False),
        timeout=1.5,
    )
    assert set(outcome.failed) == {"ward-a"}
    assert set(outcome.clients) == {"ward-b", "ward-c", "ward-d"}
    assert arrays.same(outcome.state, rest_of(tmp_path, "ward-a").state)


def test_memory_survives_a_lost_reply(tmp_path: Path) -> None:
    """An update whose reply was lost never happened: the site's file keeps what was before it."""
    nodes = wards(tmp_path, 3)
    kinds = []

    def lose_the_first(node: int, message: Any, reply: Any) -> Any:
        kinds.append(message.metadata.message_type)
        return None if node == 999 and kinds.count("query.request") == 2 else reply

    outcome = served(
        InProcessGrid(make_client_app(), nodes, lose_the_first), fs.FedHiP(beta=1.0, intercept=False), timeout=1.0
    )
    assert outcome.history[0].missing == ("ward-b",)
    kept, _ = codec.read_file(tmp_path / "ward-b" / "runs" / "7" / "ward-b.safetensors")
    assert not kept["counted"]
    kept, _ = codec.read_file(tmp_path / "ward-a" / "runs" / "7" / "ward-a.safetensors")
    assert kept["counted"]


def test_a_deployed_run_writes_its_result_or_why_not(tmp_path: Path) -> None:
    grid = InProcessGrid(make_client_app(), wards(tmp_path))
    rules = {**QUICK, "sites": ["ward-a", "ward-b", "ward-c"]}
    config: dict[str, bool | float | int | str] = {
        "job": jobs.to_text(job_of(fs.FedHiP(beta=1.0, intercept=False))),
        "rules": json.dumps(rules),
        "out": str(tmp_path / "out"),
        "status": str(tmp_path / "status.json"),
        "ledger": str(tmp_path / "fed.db"),
    }
    app = cast(ServerApp, deploy.make_server_app())
    app(grid, Context(7, 0, {}, RecordDict(), config))
    assert json.loads((tmp_path / "status.json").read_text()) == {"out": str(tmp_path / "out")}
    result = fs.Result.load(tmp_path / "out")
    assert set(result.clients) == {"ward-a", "ward-b", "ward-c"}
    assert result.settings["runtime"] == "flower"
    with Ledger(tmp_path / "fed.db") as ledger:
        assert [member.client for member in ledger.members()] == ["ward-a", "ward-b", "ward-c"]
        solved = ledger.solve().message
    np.testing.assert_allclose(solved["weight"], result.state["weight"], rtol=1e-12)
    assert [path.name for path in (tmp_path / "out" / "models").iterdir()] == ["global.safetensors"]
    config["rules"] = json.dumps({**rules, "sites": ["ward-z", "ward-y"], "wait": 0.2})
    app(grid, Context(7, 0, {}, RecordDict(), config))
    assert "without ward-z, ward-y" in json.loads((tmp_path / "status.json").read_text())["error"]


@pytest.mark.parametrize(("name", "value"), [("min_clients", 0), ("wait", -1.0), ("timeout", float("nan"))])
def test_rules_outside_their_domain_are_refused(name: str, value: float) -> None:
    rules: dict[str, Any] = {name: value}
    with pytest.raises(fs.ParameterError, match=name.replace("_", "-")):
        Rules(**rules)
