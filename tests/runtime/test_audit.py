"""Every byte that leaves a site stands in its record: by count, by kind, and by reason."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import fedsolve as fs
from fedsolve.cli import app

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedsolve[flower]'")

from flwr.app import Message
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects

from fedsolve.deploy import env_text
from fedsolve.errors import DataError
from fedsolve.runtime import audit
from fedsolve.runtime.flower import Rules, make_client_app, serve
from fedsolve.runtime.flower.counting import Counted
from fedsolve.runtime.job import Job
from tests.runtime.grid import InProcessGrid
from tests.runtime.test_flower import wards
from tests.runtime.test_secure_sites import AFL, Nodes, job_of, keyed, peers_of

FRAME = 4096  # bytes that Flower itself puts around a message, at most


class Scale:
    """What really left, by node: texts and arrays, added up by hand, and all of it as Flower encodes it."""

    def __init__(self) -> None:
        self.bytes: Counter[int] = Counter()
        self.encoded: Counter[int] = Counter()
        self.messages: Counter[int] = Counter()

    def __call__(self, node: int, question: Message, answer: Message) -> Message:
        content = answer.content
        for record in content.config_records.values():
            for name, value in record.items():
                assert isinstance(value, str | bool)
                self.bytes[node] += len(name.encode()) + len(str(value).encode())
        for arrays in content.array_records.values():
            for array in arrays.values():
                self.bytes[node] += len(array.data)
        self.encoded[node] += sum(len(each.deflate()) for each in get_all_nested_objects(content).values())
        self.messages[node] += 1
        return answer


def lines(folder: Path, name: str) -> list[audit.Line]:
    found, damaged = audit.read(folder / name / audit.FILE)
    assert not damaged
    return found


def run(nodes: Nodes, folder: Path, job: Job, scale: Scale, *, opening: bool = False, **rules: Any) -> Counted:
    grid = InProcessGrid(make_client_app(), nodes, scale)
    grid.keys = {node: config["client"].encode() for node, config in nodes.items()}
    sites = tuple(sorted(config["client"] for config in nodes.values()))
    keys = {name: name for name in sites} if opening else {}
    limits = Rules(**{"sites": sites, "wait": 30.0, "timeout": 5.0, "keys": keys, **rules})
    counted = Counted(grid)
    peers = peers_of(folder) if job.quorum else None
    serve(counted, job, limits, lambda line: None, scratch=folder, peers=peers)
    return counted


@pytest.mark.parametrize("kind", ["secure", "plain, opening", "plain, rounds", "noise"])
def test_the_lines_of_a_site_sum_up_to_all_that_left_it(tmp_path: Path, kind: str) -> None:
    nodes, scale = wards(tmp_path), Scale()
    noise = {"epsilon": 1.0, "delta": 1e-5, "by": "sites"}
    jobs = {
        "secure": job_of(AFL),
        "plain, opening": job_of(AFL, quorum=0),
        "plain, rounds": Job("glm", {"rounds": 3}),
        "noise": job_of(fs.FedHiP(), quorum=0, features="unit", noise=noise),
    }
    job = jobs[kind]
    if job.quorum:
        nodes = keyed(nodes, tmp_path)
    counted = run(nodes, tmp_path, job, scale, opening=kind == "plain, opening")
    for node, config in nodes.items():
        record = lines(tmp_path, config["client"])
        assert sum(line.bytes for line in record) == scale.bytes[node] == counted.traffic[node].up > 1000
        assert 0 <= scale.encoded[node] - scale.bytes[node] <= FRAME * scale.messages[node]
        assert {line.method for line in record} == {job.method}
        assert not any(line.refused for line in record)
        assert {line.privacy for line in record} == {
            "secure": {"secure, quorum 3"},
            "noise": {"plain, epsilon 1.0"},
        }.get(kind, {"plain"})
        samples = len(np.load(config["data"])["y"])
        assert record[0].rows == samples and record[0].sent == "a description"
        assert {line.rows for line in record[1:]} == {round(0.8 * samples)} or all(
            line.rows and line.rows < samples for line in record[1:]
        )
    if kind == "plain, opening":  # description and first answer left in one message
        assert max(scale.messages.values()) == 2 and len(record) == 3


def test_a_refusal_is_counted_with_its_reason(tmp_path: Path) -> None:
    nodes, scale = wards(tmp_path), Scale()
    for config in nodes.values():
        config["min_class"] = "1000"
    with pytest.raises(DataError):
        run(nodes, tmp_path, job_of(AFL, quorum=0), scale, opening=True)
    for node, config in nodes.items():
        record = lines(tmp_path, config["client"])
        assert sum(line.bytes for line in record) == scale.bytes[node]
        assert record[-1].refused and record[-1].bytes > 0


def test_a_site_whose_settings_are_wrong_writes_down_that_it_said_so(tmp_path: Path) -> None:
    nodes, scale = wards(tmp_path), Scale()
    first = next(iter(nodes))
    nodes[first]["test"] = "2"
    run(nodes, tmp_path, job_of(AFL, quorum=0), scale, wait=0.5)  # the two others suffice
    (line, *_) = lines(tmp_path, nodes[first]["client"])
    assert "TEST must be a share" in line.refused
    assert sum(each.bytes for each in lines(tmp_path, nodes[first]["client"])) == scale.bytes[first] > 0


# --- the command ---


def folder_of(tmp_path: Path, nodes: Nodes) -> Path:
    """The folder of the first site, as `deploy init` would have made it."""
    config = next(iter(nodes.values()))
    site = tmp_path / "site"
    site.mkdir()
    (site / "site.env").write_text(env_text({"NAME": config["client"], "STATE": config["state"]}))
    return site


def test_the_record_as_a_table_and_as_json(tmp_path: Path) -> None:
    nodes, scale = wards(tmp_path), Scale()
    run(nodes, tmp_path, job_of(AFL, quorum=0), scale)
    site, total = folder_of(tmp_path, nodes), scale.bytes[next(iter(nodes))]
    shown = CliRunner().invoke(app, ["deploy", "audit", str(site)])
    assert shown.exit_code == 0, shown.output
    assert "update" in shown.output and "plain" in shown.output
    assert f"{total} bytes left this site" in shown.output
    found = json.loads(CliRunner().invoke(app, ["deploy", "audit", str(site), "--json"]).output)
    assert found["bytes"] == total == sum(run["bytes"] for run in found["runs"].values())
    assert [line["what"] for line in found["lines"]] == ["query.hello", "update", "evaluate"]
    none = CliRunner().invoke(app, ["deploy", "audit", str(site), "--run", "8"])
    assert none.exit_code != 0 and "7" in str(none.exception or none.output)


def test_a_line_that_cannot_be_read_is_said_and_the_others_are_shown(tmp_path: Path) -> None:
    nodes = wards(tmp_path)
    run(nodes, tmp_path, job_of(AFL, quorum=0), Scale())
    site, name = folder_of(tmp_path, nodes), next(iter(nodes.values()))["client"]
    with (tmp_path / name / audit.FILE).open("a") as file:
        file.write('{"time": "2026')
    shown = CliRunner().invoke(app, ["deploy", "audit", str(site)])
    assert shown.exit_code == 1
    assert "line 4 cannot be read" in shown.output and "update" in shown.output
