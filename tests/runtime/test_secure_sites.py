"""Secure sums and noise at sites with files of their own, by Flower's apps: results, standards, attacks, traces."""

from __future__ import annotations

import json
import stat
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedsolve as fs
from fedsolve import arrays, codec, parameters
from fedsolve.errors import DataError, ParameterError
from fedsolve.features import maps

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedsolve[flower]'")

from flwr.app import ConfigRecord, Message, RecordDict

from fedsolve.privacy import credentials
from fedsolve.privacy.keys import Identity
from fedsolve.runtime import vault
from fedsolve.runtime.client import Request
from fedsolve.runtime.drive import Outcome
from fedsolve.runtime.flower import Rules, make_client_app, serve, simulate
from fedsolve.runtime.flower.messages import packed, unpacked
from fedsolve.runtime.job import Job
from fedsolve.runtime.sites import FileSite
from tests.runtime.grid import InProcessGrid
from tests.runtime.test_flower import pooled_run, wards

AFL = fs.AFL(ridge=1.0)
Nodes = dict[int, dict[str, str]]


def keyed(nodes: Nodes, folder: Path, **rules: str) -> Nodes:
    """Nodes with keys made at each site, and pinned at all; `rules` are those of every site's policy."""
    public = {
        config["client"]: credentials.made(folder / config["client"] / "home" / credentials.IDENTITY).public
        for config in nodes.values()
    }
    for config in nodes.values():
        home = folder / config["client"] / "home"
        credentials.write_peers(home / credentials.PEERS, public)
        config |= {"keys": str(home), "privacy": "secure", **rules}
    return nodes


def peers_of(folder: Path) -> dict[str, Any]:
    return credentials.read_peers(folder / "ward-a" / "home" / credentials.PEERS)


def job_of(method: fs.Method, quorum: int = 3, **words: Any) -> Job:
    return Job(method.name, parameters.values(method), quorum=quorum, **words)


def served(
    nodes: Nodes, folder: Path, job: Job, spoil: Callable[..., Any] | None = None, **rules: Any
) -> tuple[Outcome, InProcessGrid]:
    grid = InProcessGrid(make_client_app(), nodes, spoil)
    sites = tuple(sorted(config["client"] for config in nodes.values()))
    limits = Rules(**{"sites": sites, "wait": 60.0, "timeout": 5.0, **rules})
    return serve(grid, job, limits, lambda line: None, scratch=folder, peers=peers_of(folder))[0], grid


@pytest.mark.parametrize("method", [AFL, fs.FedHiP(), fs.FedPrior(), fs.APFL()], ids=lambda method: method.name)
def test_a_simulation_gives_the_bits_of_a_secure_run_in_process(method: fs.Method) -> None:
    federation = fs.load("digits").split(fs.dirichlet(0.5), clients=4, seed=0)
    wanted = fs.run(method, federation, secure=fs.Secure())
    found = simulate(job_of(method), lambda: federation)
    assert arrays.same(found.state, wanted.state)
    assert found.privacy == wanted.privacy
    assert found.accuracy.pooled == wanted.accuracy.pooled and found.accuracy.mean is None
    assert all(arrays.same(found.models[name].arrays, wanted.models[name].arrays) for name in wanted.models)
    assert (found.bytes_up, found.bytes_down) == (wanted.bytes_up, wanted.bytes_down)


def test_sites_with_keys_of_their_own_give_the_model_of_a_plain_run(tmp_path: Path) -> None:
    nodes = keyed(wards(tmp_path, 4), tmp_path)
    outcome, _ = served(nodes, tmp_path, job_of(fs.FedHiP(beta=1.0)))
    names = tuple(config["client"] for config in nodes.values())
    wanted = pooled_run(tmp_path, fs.FedHiP(beta=1.0), names)
    assert not outcome.failed and set(outcome.clients) == set(names)
    for name in wanted.state:
        np.testing.assert_allclose(outcome.state[name], wanted.state[name], rtol=1e-11)
    for name in names:
        model = fs.load_model(tmp_path / name / "models" / f"{name}.safetensors")
        for part, array in wanted.models[name].arrays.items():
            np.testing.assert_allclose(model.arrays[part], array, rtol=0, atol=1e-9 * np.abs(array).max())
    assert all(client.train is None and client.accuracy is None for client in outcome.clients.values())
    assert wanted.accuracy.pooled == pytest.approx(
        fs.metrics.figures(outcome.tallies["personal"])["accuracy"], abs=1e-12
    )


def test_secrets_are_the_owners_alone_and_gone_when_the_sum_is_known(tmp_path: Path) -> None:
    secrets: set[bytes] = set()
    modes: set[int] = set()

    def look(node: int, question: Message, answer: Message) -> Message:
        for path in tmp_path.glob(f"ward-*/secure/*/{vault.FILE}"):
            modes.add(stat.S_IMODE(path.stat().st_mode))
            kept = codec.read_file(path)[0]
            secrets.update(kept[name].tobytes() for name in ("key", "seed") if name in kept)
        return answer

    nodes = keyed(wards(tmp_path), tmp_path)
    served(nodes, tmp_path, job_of(AFL), look)
    assert modes == {0o600} and len(secrets) == 12  # a key and a seed, of three sites, for the sum and for figures
    for config in nodes.values():
        secrets.add(Path(config["keys"], credentials.IDENTITY).read_bytes())
    files = [path for path in tmp_path.rglob("*") if path.is_file() and path.name != credentials.IDENTITY]
    assert len(files) > 12
    for path in files:
        content = path.read_bytes()
        assert not any(secret in content or secret.hex().encode() in content for secret in secrets), path


def test_secrets_of_a_sum_that_came_to_nothing_are_gone_when_the_next_run_begins(tmp_path: Path) -> None:
    nodes = keyed(wards(tmp_path), tmp_path)

    def lost(node: int, question: Message, answer: Message) -> Message | None:
        return None if node == 999 and "body" in question.content and kind_of(question) == "mask" else answer

    with pytest.raises(DataError, match="fewer than the quorum of 3"):
        served(nodes, tmp_path, job_of(AFL), lost, timeout=1.0)
    path = tmp_path / "ward-a" / "secure" / "ward-a" / vault.FILE
    assert {"key", "seed"} <= codec.read_file(path)[0].keys()
    with pytest.raises(DataError, match="asks for its sums as they are"):
        served(nodes, tmp_path, job_of(AFL, quorum=0))
    served(nodes, tmp_path, job_of(AFL))
    assert codec.read_file(path)[0].keys() == {"seen", "journal"}


def kind_of(message: Message) -> str:
    return Request.read(unpacked(message.content)).kind


# --- standards of a site, which no server lowers ---


def test_a_site_that_answers_in_secure_sums_alone_refuses_plain_ones(tmp_path: Path) -> None:
    nodes = keyed(wards(tmp_path), tmp_path)
    with pytest.raises(DataError, match="answers under a secure sum alone"):
        served(nodes, tmp_path, job_of(AFL, quorum=0))
    lines = (tmp_path / "ward-a" / "audit.jsonl").read_text().splitlines()
    assert lines and all("secure sum alone" in json.loads(line)["refused"] for line in lines)
    assert not (tmp_path / "ward-a" / "runs").exists()


def test_the_quorum_is_the_sites(tmp_path: Path) -> None:
    nodes = keyed(wards(tmp_path, 5), tmp_path, quorum="5")
    with pytest.raises(DataError, match="secure sums of at least 5 sites; the server asks for sums of 3"):
        served(nodes, tmp_path, job_of(AFL))
    served(nodes, tmp_path, job_of(AFL, quorum=5))


def test_a_secure_job_is_not_answered_in_plain(tmp_path: Path) -> None:
    """A server that asks for a secure sum, and then for an update as it is."""
    nodes = keyed(wards(tmp_path), tmp_path)
    heads: list[dict[str, str]] = []

    def note(node: int, question: Message, answer: Message) -> Message:
        if "body" in question.content:
            heads.append({name: str(text) for name, text in question.content.config_records["head"].items()})
        return answer

    _, grid = served(nodes, tmp_path, job_of(AFL), note)
    opened = heads[0]
    for head, words in (
        (opened, "takes part in secure sums alone"),
        ({**opened, "job": opened["job"].replace('"quorum": 3', '"quorum": 0')}, "under a secure sum alone"),
    ):
        request = Request("update", 1, 0, "unit", {})
        assert words in asked(grid, head, replace(request, space=space_of(grid, opened)))


def space_of(grid: InProcessGrid, head: dict[str, str]) -> str:
    from fedsolve.data.task import Task

    return Task.from_text(head["task"]).described


def asked(grid: InProcessGrid, head: dict[str, str], request: Request, node: int = 1000) -> str:
    """Why a site does not answer."""
    content = RecordDict({"head": ConfigRecord(dict(head)), "body": packed(request.write())})
    identities = list(grid.push_messages([Message(content, node, "query.request", ttl=60.0)]))
    reply = next(iter(grid.pull_messages(identities)))
    return str(reply.content.config_records["failure"]["reason"])


def test_who_is_told_of_another_method_is_in_no_sum(tmp_path: Path) -> None:
    """A server could have all but one work by a method that makes nothing of their data."""
    nodes = keyed(wards(tmp_path), tmp_path)

    class Lying(InProcessGrid):
        def push_messages(self, messages: Any) -> Any:
            listed = list(messages)
            for message in listed:
                head = message.content.config_records["head"]
                if message.metadata.dst_node_id != 1000 and "task" in head:
                    head["job"] = str(head["job"]).replace('"ridge": 1.0', '"ridge": 2.0')
            return super().push_messages(listed)

    grid = Lying(make_client_app(), nodes)
    rules = Rules(wait=2.0, timeout=5.0)
    with pytest.raises(DataError, match="about another round, method or feature space"):
        serve(grid, job_of(AFL), rules, lambda line: None, peers=peers_of(tmp_path))


def test_a_site_without_keys_or_with_a_swapped_key_says_so(tmp_path: Path) -> None:
    nodes = keyed(wards(tmp_path), tmp_path)
    bare = {node: {name: text for name, text in config.items() if name != "keys"} for node, config in nodes.items()}
    with pytest.raises(DataError, match="`fedsolve deploy join` makes them"):
        served(bare, tmp_path, job_of(AFL))
    grid = InProcessGrid(make_client_app(), nodes)
    peers = {**peers_of(tmp_path), "ward-b": Identity.make().public}
    with pytest.raises(DataError, match="other keys of the sites than this site has; compare their fingerprints"):
        serve(grid, job_of(AFL), Rules(wait=2.0, timeout=5.0), lambda line: None, peers=peers)


def test_rosters_are_remembered_from_run_to_run(tmp_path: Path) -> None:
    """The sum over four sites less that over three of them would be the fourth's."""
    nodes = keyed(wards(tmp_path, 4), tmp_path)
    served(nodes, tmp_path, job_of(AFL))
    fewer = {node: config for node, config in nodes.items() if config["client"] != "ward-d"}
    with pytest.raises(DataError, match=r"differ from an earlier one over the same data by 1 site \(ward-d\)"):
        served(fewer, tmp_path, job_of(fs.FedHiP()))
    served(nodes, tmp_path, job_of(fs.FedHiP()))


def test_no_answer_comes_with_the_hello(tmp_path: Path) -> None:
    nodes = keyed(wards(tmp_path), tmp_path)
    grid = InProcessGrid(make_client_app(), nodes)
    grid.keys = {node: config["client"].encode() for node, config in nodes.items()}
    names = {config["client"]: config["client"] for config in nodes.values()}
    rules = Rules(tuple(names), keys=names, wait=2.0, timeout=5.0)
    serve(grid, job_of(AFL), rules, lambda line: None, scratch=tmp_path, peers=peers_of(tmp_path))
    assert grid.pushed == 3 * 7  # hello, and three phases of the sum and of the figures


def test_filters_of_pictures_are_fitted_in_secure_sums(tmp_path: Path) -> None:
    from tests.runtime.test_fitting import SPEC, pooled
    from tests.runtime.test_fitting import wards as pictured

    nodes = keyed(pictured(tmp_path), tmp_path)
    job = job_of(fs.FedHiP(beta=1.0), features=SPEC)
    grid = InProcessGrid(make_client_app(), nodes)
    outcome, task, _ = serve(grid, job, Rules(wait=5.0, timeout=20.0), lambda line: None, peers=peers_of(tmp_path))
    plain = pooled(tmp_path).fitted(SPEC)
    assert not outcome.failed
    assert str(task.features)[:40] == str(plain.task.features)[:40]
    wanted = fs.run(fs.FedHiP(beta=1.0), plain)
    assert outcome.tallies["personal"]["count"] == sum(client.test or 0 for client in wanted.clients.values())


# --- noise ---


def noisy(**words: Any) -> dict[str, Any]:
    return asdict(fs.Noise(**{"epsilon": 1.0, **words}))


def test_what_is_spent_on_the_same_data_adds_up_to_the_sites_limit(tmp_path: Path) -> None:
    rules = {"privacy": "noisy", "epsilon_max": "6.5", "features": "unit"}
    nodes = keyed(wards(tmp_path), tmp_path, **rules)
    job = job_of(AFL, 3, features="unit", noise=noisy(epsilon=4.0, honest=3))
    outcome, _ = served(nodes, tmp_path, job)
    assert not outcome.failed
    spent = json.loads((tmp_path / "ward-a" / "spent.json").read_text())
    assert list(spent["mu"].values()) == [pytest.approx(fs.Noise(epsilon=4.0).mu)]
    served(nodes, tmp_path, job)
    with pytest.raises(DataError, match=r"would have spent epsilon 7\.\d+ .* its limit is 6.5"):
        served(nodes, tmp_path, job)
    with pytest.raises(DataError, match=r"it spends epsilon 6\.5 at most; the server asks for 8"):
        served(nodes, tmp_path, job_of(AFL, 3, features="unit", noise=noisy(epsilon=8.0, honest=3)))


def test_noise_that_the_server_adds_is_none_to_a_site_that_wants_noise(tmp_path: Path) -> None:
    nodes = keyed(wards(tmp_path), tmp_path, privacy="noisy", features="unit")
    with pytest.raises(DataError, match="it answers with noise alone"):
        served(nodes, tmp_path, job_of(AFL, 0, features="unit", noise=noisy(by="server")))


def test_a_server_cannot_thin_the_noise_out(tmp_path: Path) -> None:
    """By saying that very many share it, or that sums are over very many, and then opening one over three."""
    nodes = keyed(wards(tmp_path), tmp_path, privacy="noisy", features="unit")
    asked = job_of(AFL, 3, features="unit", noise=noisy(honest=3))

    class Lying(InProcessGrid):
        def push_messages(self, messages: Any) -> Any:
            listed = list(messages)
            for message in listed:
                head = message.content.config_records["head"]
                head["job"] = str(head["job"]).replace('"honest": 3', '"honest": 1000')
            return super().push_messages(listed)

    sites = tuple(config["client"] for config in nodes.values())
    rules = Rules(sites, wait=2.0, timeout=5.0)
    grid = Lying(make_client_app(), nodes)
    with pytest.raises(DataError, match="noise that 1000 share would be too little"):
        serve(grid, asked, rules, lambda line: None, peers=peers_of(tmp_path))
    site = FileSite.of(nodes[1000])
    assert site.member(replace(asked, quorum=1000), "").quorum == 1000  # so that it opens no session over fewer
    assert not (tmp_path / "ward-a" / "spent.json").exists()


def test_noise_that_sites_share_needs_a_sum_of_so_many(tmp_path: Path) -> None:
    nodes = keyed(wards(tmp_path), tmp_path, features="unit")
    with pytest.raises(ParameterError, match="hides nothing where the server sees"):
        served(nodes, tmp_path, job_of(AFL, 0, features="unit", noise=noisy(honest=2)))
    with pytest.raises(ParameterError, match="take honest=3 at most"):
        served(nodes, tmp_path, job_of(AFL, 3, features="unit", noise=noisy(honest=4)))


@pytest.mark.parametrize("words", [{"quorum": -1}, {"quorum": True}, {"noise": {"eps": 1}}, {"noise": [1]}])
def test_a_job_of_other_kinds_is_refused(words: dict[str, Any]) -> None:
    with pytest.raises((ParameterError, DataError)):
        Job("afl", **words)


def test_a_result_says_how_sums_travelled_and_can_be_saved(tmp_path: Path) -> None:
    federation = fs.load("digits").with_features(maps.parse("unit")).split(fs.iid(), clients=3, seed=0)
    job = job_of(fs.AFL(), features="unit", noise=noisy(honest=3))
    result = simulate(job, lambda: federation)
    result.save(tmp_path / "out")
    found = fs.Result.load(tmp_path / "out")
    assert found.privacy["epsilon"] == found.settings["epsilon"] == 1.0
    assert found.privacy["secure"] and found.settings["quorum"] == 3
    assert found.privacy["trusted"] == "a secure sum" and not found.warnings


# --- files of keys ---


def test_keys_are_made_once_and_for_their_owner(tmp_path: Path) -> None:
    path = tmp_path / "home" / credentials.IDENTITY
    assert credentials.made(path).public == credentials.made(path).public
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.chmod(0o640)
    with pytest.raises(DataError, match="chmod 600"):
        credentials.read_identity(path)


@pytest.mark.parametrize("text", ["", "[]", '{"format": 2, "peers": {}}', '{"format": 1, "peers": {"a": {"sign": 3}}}'])
def test_a_damaged_file_of_peers_is_told(tmp_path: Path, text: str) -> None:
    path = tmp_path / "peers.json"
    path.write_text(text)
    with pytest.raises(DataError):
        credentials.read_peers(path)


def test_another_key_of_a_known_site_is_refused_and_a_new_site_is_not(tmp_path: Path) -> None:
    one, other = Identity.make().public, Identity.make().public
    credentials.check_pinned({"a": one}, {"a": one, "b": other})
    with pytest.raises(DataError, match="'a' is known by other keys"):
        credentials.check_pinned({"a": one}, {"a": other})
    both = credentials.roster_fingerprint({"a": one, "b": other})
    assert both != credentials.roster_fingerprint({"b": one, "a": other})


# --- tables ---


def table_job(**words: Any) -> Job:
    return job_of(fs.FedHiP(), features="columns", **words)


def test_columns_of_tables_are_fitted_in_secure_sums(tmp_path: Path) -> None:
    """The map of a plain run, from sums alone: levels are named beforehand, and how many rows have them is not."""
    from tests.runtime.test_fitting import served as plainly
    from tests.runtime.test_tables import wards as tables

    _, wanted, *_ = plainly(tables(tmp_path), fs.FedHiP(), "columns")
    hellos: list[dict[str, Any]] = []

    def note(node: int, question: Message, answer: Message) -> Message:
        head = answer.content.config_records.get("head")
        if head and "description" in head:
            hellos.append(json.loads(json.loads(str(head["description"]))["words"]))
        return answer

    nodes = keyed(tables(tmp_path), tmp_path)
    grid = InProcessGrid(make_client_app(), nodes, note)
    rules = Rules(wait=5.0, timeout=20.0)
    outcome, task, _ = serve(grid, table_job(), rules, lambda line: None, peers=peers_of(tmp_path))
    assert not outcome.failed and len(outcome.clients) == 3
    assert hellos[0]["sex"] == [2, ["f", "m"]] and hellos[0]["age"] == [1, []]
    assert task.columns == wanted.columns
    for found, part in zip(task.features.parts, wanted.features.parts, strict=True):  # type: ignore[attr-defined]
        for name, value in vars(part).items() if hasattr(part, "__dict__") else asdict(part).items():
            assert getattr(found, name) == (pytest.approx(value, rel=1e-13) if isinstance(value, float) else value)


def test_a_level_that_few_rows_have_is_named_by_nobody(tmp_path: Path) -> None:
    from tests.runtime.test_tables import wards as tables

    nodes = keyed(tables(tmp_path, min_cell="200"), tmp_path)
    grid = InProcessGrid(make_client_app(), nodes)
    rules = Rules(wait=5.0, timeout=20.0)
    outcome, task, _ = serve(grid, table_job(), rules, lambda line: None, peers=peers_of(tmp_path))
    assert task.columns == ("age", "age (empty)", "pulse") and not outcome.failed
