"""Sites whose Parquet need not fit into memory: in a ledger, and in a run with other sites."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedsolve as fs
from fedsolve import codec
from fedsolve.data import parts
from fedsolve.features import maps
from fedsolve.features.vocabulary import named
from fedsolve.ledger.site import contribute, personal
from fedsolve.moments import Moments
from fedsolve.privacy.policy import Policy, Refusal
from fedsolve.runtime import sites, splits
from fedsolve.runtime.client import Request
from fedsolve.runtime.fitting import Fitting
from fedsolve.runtime.job import Job
from fedsolve.runtime.sites import FileSite

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")
pytest.importorskip("cryptography", reason="pip install 'fedsolve[flower]'")

from fedsolve.deploy.check import check  # noqa: E402 (it needs cryptography)


def write(path: Path, rows: int = 400, **changes: Any) -> Any:
    rng = np.random.default_rng(2)
    columns = {
        "age": rng.normal(50, 9, rows), "sex": rng.choice(["f", "m"], rows), "pulse": rng.normal(80, 9, rows),
        "y": rng.choice(["no", "yes"], rows), **changes,
    }  # fmt: skip
    table = pa.table(columns)
    pq.write_table(table, path, row_group_size=70)
    return table


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "BLOCK_BYTES", 8 * 4 * 61)


def site_at(folder: Path, features: str = "", **policy: Any) -> FileSite:
    rules = Policy(**policy)
    return FileSite("ward-a", str(folder / "big.parquet"), folder / "state", features, policy=rules, stream=True)


def answer(site: FileSite, job: Job, task: fs.Task | None = None, message: Any = None) -> Any:
    task = task or site.describe(job).task
    request = Request("update", 1, job.seed, task.described, message or {})
    return codec.decode(sites.respond(site, job, task, request.write(), "7"))


def afl(features: str, **settings: Any) -> Job:
    return Job("afl", settings, features, identity=maps.parse(features).identity)


def test_a_contribution_is_that_of_the_whole_table(tmp_path: Path) -> None:
    write(tmp_path / "big.parquet")
    data = str(tmp_path / "big.parquet")
    features = fs.stream(data).fitted().task.features
    task = replace(fs.stream(data).task, features=features)
    with fs.Ledger.create(tmp_path / "fed.db", fs.FedHiP(alpha=2.0), task) as ledger:
        ledger.terms.save(tmp_path / "invitation")
        found = {}
        for streamed in (True, False):
            out = tmp_path / f"ward-{streamed}.safetensors"
            contribute(tmp_path / "invitation", data, "ward-a", out, stream=streamed)
            found[streamed] = Moments.from_arrays(codec.read_file(out)[0])
        assert found[True].count == found[False].count == 400
        np.testing.assert_allclose(found[True].triangle, found[False].triangle, rtol=1e-12, atol=1e-9)
        assert [answer.event for answer in ledger.offer_files([tmp_path / "ward-True.safetensors"])] == ["added"]
        ledger.solve().save(tmp_path / "solved")
    message = tmp_path / "solved" / "message.safetensors"
    models = [personal(message, data, "ward-a", stream=streamed) for streamed in (True, False)]
    assert models[0].counted  # the same bits again
    np.testing.assert_allclose(models[0].model.arrays["weight"], models[1].model.arrays["weight"], rtol=1e-6, atol=1e-9)


def test_rows_of_others_are_left_out(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    owners = rng.choice(["ward-a", "ward-b"], 400)
    write(tmp_path / "big.parquet", client=owners)
    data = str(tmp_path / "big.parquet")
    task = replace(fs.stream(data).task, features=fs.stream(data).fitted().task.features)
    with fs.Ledger.create(tmp_path / "fed.db", fs.AFL(), task) as ledger:
        ledger.terms.save(tmp_path / "invitation")
    census = contribute(tmp_path / "invitation", data, "ward-b", tmp_path / "out", stream=True)
    assert census.samples == (owners == "ward-b").sum()
    with pytest.raises(fs.DataError, match="no row is of client 'ward-c'"):
        contribute(tmp_path / "invitation", data, "ward-c", tmp_path / "out", stream=True)


def test_a_site_sends_the_moments_of_its_training_rows_and_figures_of_the_others(tmp_path: Path) -> None:
    write(tmp_path / "big.parquet")
    site = site_at(tmp_path, "columns", test=0.25)
    features = str(fs.stream(tmp_path / "big.parquet").fitted().task.features)
    job = afl(features, ridge=1.0)
    task = site.describe(job).task
    sent = Moments.from_arrays(answer(site, job, task))
    client = fs.stream(tmp_path / "big.parquet").with_features(task.features).client_of("ward-a", test=0.25)
    assert sent.count == len(client.train) == 400 - len(client.test)
    state = fs.AFL(ridge=1.0).aggregate({}, sent.arrays(), fs.Server(task, 1, np.random.default_rng(0)))
    model = fs.AFL(ridge=1.0).message(state, "ward-a", "personalize")
    request = Request("evaluate", 1, job.seed, task.described, model)
    tally = codec.decode(sites.respond(site, job, task, request.write(), "7"))
    assert tally["train"] == sent.count and tally["personal/count"] == len(client.test)
    assert (tmp_path / "state" / "models" / "ward-a.safetensors").exists()
    assert site.account()["data"] == site_at(tmp_path, "columns", test=0.25)._split.data


def test_columns_are_told_as_those_of_the_whole_table(tmp_path: Path) -> None:
    table = write(tmp_path / "big.parquet", town=np.array(["Rome"] * 390 + ["Oslo"] * 8 + ["Bern"] * 2))
    site = site_at(tmp_path, "columns", test=0.0, min_cell=3)
    job = Job("fit", {"features": "columns"})
    told = answer(site, job)
    cells = fs.load(str(tmp_path / "big.parquet")).inputs
    whole = Fitting("columns", told_from=3)
    _, wanted = whole.update({}, {}, fs.Site(site.describe(job).task, fs.Samples(cells, np.zeros(400)), 1, None))  # type: ignore[arg-type]
    assert told.keys() == wanted.keys() and all(np.array_equal(told[name], wanted[name]) for name in told)
    assert b"Bern" not in told["levels/texts"].tobytes()
    words = site.describe(replace(job, quorum=3)).words
    assert words == named(cells, 3)  # type: ignore[arg-type]
    assert len(table) == 400


def test_a_second_split_and_a_few_rows_more_are_refused(tmp_path: Path) -> None:
    table = write(tmp_path / "big.parquet")
    job = Job("fit", {"features": "columns"})
    answer(site_at(tmp_path, "columns", test=0.2), job)
    answer(site_at(tmp_path, "columns", test=0.2), job)
    journal = tmp_path / "state" / splits.FILE
    assert len(journal.read_text().splitlines()) == 1
    for other in ({"test": 0.3}, {"test": 0.2, "split_seed": 4}):
        with pytest.raises(Refusal, match="under another split"):
            answer(site_at(tmp_path, "columns", **other), job)
    pq.write_table(pa.concat_tables([table, table.slice(0, 3)]), tmp_path / "big.parquet")
    with pytest.raises(Refusal, match="differ from those it answered with before in fewer than 5"):
        answer(site_at(tmp_path, "columns", test=0.2), job)
    pq.write_table(pa.concat_tables([table, table.slice(0, 60)]), tmp_path / "big.parquet")
    answer(site_at(tmp_path, "columns", test=0.2), job)
    assert len(journal.read_text().splitlines()) == 2


def test_a_split_of_the_table_in_memory_is_one_of_the_stream_too(tmp_path: Path) -> None:
    write(tmp_path / "big.parquet")
    job = Job("fit", {"features": "columns"})
    answer(replace(site_at(tmp_path, "columns", test=0.2), stream=False), job)
    with pytest.raises(Refusal, match="under another split"):
        answer(site_at(tmp_path, "columns", test=0.2), job)


def test_a_sketch_is_read_as_it_was_written_and_counts_few_rows_exactly() -> None:
    rng = np.random.default_rng(0)
    rows = rng.integers(0, 2**63, 30_000).astype(np.uint64)
    whole = splits.Split(0.0, 0, "x", np.sort(rows), rows[:0]).sketch()
    assert splits.Sketch.read(whole.line()).distance(whole) == 0
    for few in (1, 3, 8):
        less = splits.Split(0.0, 0, "x", np.sort(rows[few:]), rows[:0]).sketch()
        assert less.distance(whole) == few and less.overlaps(whole) and less.data != whole.data
    assert not splits.Split(0.0, 0, "x", np.sort(rows + np.uint64(1)), rows[:0]).sketch().overlaps(whole)
    half = splits.Split(0.0, 0, "x", np.sort(rows[:15_000]), rows[:0]).sketch()
    assert half.overlaps(whole)


def test_the_rules_of_a_site_hold_for_a_stream(tmp_path: Path) -> None:
    write(tmp_path / "big.parquet", y=["yes"] * 398 + ["no"] * 2)
    features = str(fs.stream(tmp_path / "big.parquet").fitted().task.features)
    with pytest.raises(Refusal, match="a class with fewer than 5"):
        answer(site_at(tmp_path, "columns"), afl(features))
    with pytest.raises(Refusal, match="disclose single records"):
        answer(site_at(tmp_path, "columns", min_class=1, max_parameters=0.001), afl(features))
    with pytest.raises(Refusal, match="columns that it does not give away"):
        site_at(tmp_path, "columns", allow_columns=("age",)).describe(afl(features))
    with pytest.raises(fs.FedsolveError, match="of a stream, test is a share"):
        answer(site_at(tmp_path, "columns", test="official"), afl(features))


def test_check_looks_at_a_stream(tmp_path: Path) -> None:
    write(tmp_path / "big.parquet")
    settings = {"NAME": "ward-a", "SUPERLINK": "127.0.0.1:1", "DATA": "big.parquet", "STATE": "state", "PORT": "1"}
    settings |= {"STREAM": "yes", "FEATURES": "columns"}
    (tmp_path / "site.env").write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    found = {each.what: each for each in check(tmp_path)}
    assert found["data"].words == "400 samples of 3, 2 classes (no, yes), read in blocks"
    assert found["rules"].fine and found["features"].fine
