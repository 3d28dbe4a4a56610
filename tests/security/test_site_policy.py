"""A site's own rules: its split, the least it answers from, one split per data, and a line for whatever leaves it."""

from __future__ import annotations

import json
import stat
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedsolve as fs
from fedsolve import codec
from fedsolve.moments import Moments
from fedsolve.privacy.policy import Policy, Refusal
from fedsolve.runtime import audit, sites, splits
from fedsolve.runtime.client import Request
from fedsolve.runtime.job import Job
from fedsolve.runtime.sites import FileSite

PLAIN = {"ridge": 0.0, "intercept": False}


def write(path: Path, rows: int = 60, seed: int = 0, **changes: Any) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    x, y = rng.normal(size=(rows, 4)), np.arange(rows) % 3
    x, y = changes.get("x", x), changes.get("y", y)
    np.savez(path, x=x, y=y)
    return x, y


def site_at(folder: Path, **policy: Any) -> FileSite:
    return FileSite("ward-a", str(folder / "data.npz"), folder / "state", policy=Policy(**policy))


def moments(site: FileSite, job: Job) -> Moments:
    """What a site sends to the first request of such a job."""
    task = site.describe(job).task
    answer = sites.respond(site, job, task, Request("update", 1, job.seed, task.described, {}).write(), "7")
    return Moments.from_arrays(codec.decode(answer))


# --- the split is the site's ---


def test_the_server_cannot_make_a_site_train_on_one_sample(tmp_path: Path) -> None:
    """In 0.1.0 `test=0.9999` gave F'Y of one training sample, which is that sample."""
    write(tmp_path / "data.npz")
    with pytest.raises(Refusal, match=r"it decides by itself what it tests on, which is 0.2; .* '0.9999'.*--test"):
        moments(site_at(tmp_path), Job("afl", PLAIN, seed=5, test=0.9999))
    assert not (tmp_path / "state" / splits.FILE).exists()


@pytest.mark.parametrize("asked", [0.2013, 0, 0.0, "official", "global", "", float("nan"), None, [0.2], True])
def test_a_job_that_asks_for_another_share_is_refused(tmp_path: Path, asked: Any) -> None:
    write(tmp_path / "data.npz")
    with pytest.raises(Refusal, match=r"which is 0\.2"):
        moments(site_at(tmp_path), Job("afl", PLAIN, test=asked))


def test_whatever_the_seed_of_the_run_the_training_samples_are_the_same(tmp_path: Path) -> None:
    """In 0.1.0 two seeds gave two splits, and the difference of their sums that of a few rows."""
    x, y = write(tmp_path / "data.npz")
    sent = [moments(site_at(tmp_path), Job("afl", PLAIN, seed=seed)) for seed in (0, 5, 2**40)]
    assert all(np.array_equal(sent[0].gram, other.gram) for other in sent[1:])
    np.savez(tmp_path / "all.npz", x=x, y=y, client=np.repeat("ward-a", len(y)))
    train = fs.load(str(tmp_path / "all.npz")).split("by-client").clients["ward-a"].train
    np.testing.assert_allclose(sent[0].gram, train.inputs.T @ train.inputs)


def test_a_job_that_asks_for_the_sites_own_share_is_answered(tmp_path: Path) -> None:
    write(tmp_path / "data.npz")
    site = site_at(tmp_path, test=0.5, split_seed=9)
    assert int(moments(site, Job("afl", PLAIN, test=0.5)).count) == 30
    assert len(splits.Split.of(fs.load(site.data), "ward-a", site.policy).train) == 30


# --- the least it answers from ---


def test_too_few_training_samples_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "data.npz", y=np.zeros(5, dtype=int), x=np.eye(5))
    with pytest.raises(Refusal, match="fewer than 5 training samples") as caught:
        moments(site_at(tmp_path), Job("afl", PLAIN))
    assert "4 training samples" in caught.value.details and "4 training" not in str(caught.value)
    assert moments(site_at(tmp_path, test=0.0), Job("afl", PLAIN)).count == 5


@pytest.mark.parametrize("few", [1, 2, 4])
def test_a_class_with_few_training_samples_is_refused_and_named_only_at_the_site(tmp_path: Path, few: int) -> None:
    """In 0.1.0 a class with one sample showed that sample in F'Y."""
    labels = ["well"] * 30 + ["plague"] * few
    text = "\n".join(["age,label", *(f"{age},{label}" for age, label in enumerate(labels))])
    (tmp_path / "data.csv").write_text(text)
    site = FileSite("ward-a", str(tmp_path / "data.csv"), tmp_path / "state", policy=Policy(test=0.0))
    with pytest.raises(Refusal, match="a class with fewer than 5 training samples") as caught:
        moments(site, Job("afl", PLAIN))
    assert "plague" not in str(caught.value)
    assert f"plague ({few})" in caught.value.details
    assert moments(replace(site, policy=Policy(test=0.0, min_class=few)), Job("afl", PLAIN)).count == 30 + few


def test_absent_classes_are_no_small_ones(tmp_path: Path) -> None:
    write(tmp_path / "data.npz", y=np.repeat([0, 7], 30))
    assert moments(site_at(tmp_path), Job("afl", PLAIN)).count == 48


# --- one split per data ---


def test_a_second_split_of_the_same_data_is_refused_until_the_site_says_otherwise(tmp_path: Path) -> None:
    write(tmp_path / "data.npz")
    moments(site_at(tmp_path), Job("afl", PLAIN))
    for other in ({"test": 0.2013}, {"split_seed": 1}, {"test": 0.0}):
        with pytest.raises(Refusal, match=r"under another split; .*ALLOW_SPLITS=yes .*splits\.jsonl") as caught:
            moments(site_at(tmp_path, **other), Job("afl", PLAIN))
        assert "line 1: TEST=0.2 SPLIT_SEED=0" in caught.value.details
    journal = tmp_path / "state" / splits.FILE
    assert len(journal.read_text().splitlines()) == 1
    moments(site_at(tmp_path, test=0.3, allow_splits=True), Job("afl", PLAIN))
    first, second = journal.read_text().splitlines()
    journal.write_text(second + "\n")
    moments(site_at(tmp_path, test=0.3), Job("afl", PLAIN))
    with pytest.raises(Refusal, match="under another split"):
        moments(site_at(tmp_path), Job("afl", PLAIN))
    assert json.loads(first)["test"] == 0.2


def test_another_split_of_almost_the_same_data_is_refused(tmp_path: Path) -> None:
    x, y = write(tmp_path / "data.npz")
    moments(site_at(tmp_path), Job("afl", PLAIN))
    for keep in (np.arange(59), np.arange(60)[::-1], np.arange(40)):
        np.savez(tmp_path / "data.npz", x=x[keep], y=y[keep])
        with pytest.raises(Refusal, match="for these data, or most of them, under another split"):
            moments(site_at(tmp_path, split_seed=1), Job("afl", PLAIN))
    write(tmp_path / "data.npz", seed=1)
    moments(site_at(tmp_path, split_seed=1), Job("afl", PLAIN))  # other data: nothing to compare


@pytest.mark.parametrize("added", range(1, 7))
def test_training_samples_that_differ_in_a_few_are_refused(tmp_path: Path, added: int) -> None:
    """The difference of the two sums is that of the rows that were added."""
    x, y = write(tmp_path / "data.npz")
    site = site_at(tmp_path, test=0.0)
    before = moments(site, Job("afl", PLAIN))
    more, _ = write(tmp_path / "data.npz", rows=added, seed=3, y=np.zeros(added, dtype=int))
    np.savez(tmp_path / "data.npz", x=np.concatenate([x, more]), y=np.concatenate([y, np.zeros(added, dtype=int)]))
    if added < 5:
        with pytest.raises(Refusal, match="differ from those it answered with before in fewer than 5"):
            moments(site_at(tmp_path, test=0.0), Job("afl", PLAIN))
    else:
        after = moments(site_at(tmp_path, test=0.0), Job("afl", PLAIN))
        np.testing.assert_allclose(after.gram - before.gram, more.T @ more, atol=1e-12)


def test_the_same_rows_in_another_order_without_a_test_set_are_the_same_data(tmp_path: Path) -> None:
    x, y = write(tmp_path / "data.npz")
    moments(site_at(tmp_path, test=0.0), Job("afl", PLAIN))
    np.savez(tmp_path / "data.npz", x=x[::-1], y=y[::-1])
    moments(site_at(tmp_path, test=0.0), Job("afl", PLAIN))
    assert len((tmp_path / "state" / splits.FILE).read_text().splitlines()) == 1


def test_a_site_under_another_name_splits_otherwise_and_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "data.npz")
    moments(site_at(tmp_path), Job("afl", PLAIN))
    with pytest.raises(Refusal, match="under another split"):
        moments(replace(site_at(tmp_path), name="ward-b"), Job("afl", PLAIN))


def test_rows_that_are_equal_count_as_often_as_they_stand_there(tmp_path: Path) -> None:
    rows = np.array([1, 1, 2, 3], dtype=np.uint64)
    split = splits.Split(0.0, 0, "x", rows, rows[:0])
    assert split.distance(split) == 0
    assert split.distance(replace(split, train=rows[1:])) == 1
    assert split.distance(replace(split, train=rows[2:] + np.uint64(7))) == 6
    again = splits.Split.read(split.line())
    assert np.array_equal(again.train, rows) and len(again.held) == 0 and again.same_rule(split)


def test_a_damaged_journal_is_no_reason_to_answer(tmp_path: Path) -> None:
    write(tmp_path / "data.npz")
    moments(site_at(tmp_path), Job("afl", PLAIN))
    with (tmp_path / "state" / splits.FILE).open("a") as file:
        file.write("{}\n")
    with pytest.raises(fs.DataError, match=r"line 2 of .*splits.jsonl is damaged; remove it"):
        moments(site_at(tmp_path), Job("afl", PLAIN))


def test_files_of_a_site_are_its_owners_alone(tmp_path: Path) -> None:
    write(tmp_path / "data.npz")
    moments(site_at(tmp_path), Job("afl", PLAIN))
    audit.Log(tmp_path / "state" / "audit.jsonl").write({"what": "a test", "text": "x" * 10_000})
    for name in (splits.FILE, "audit.jsonl"):
        assert stat.S_IMODE((tmp_path / "state" / name).stat().st_mode) == 0o600
    assert (tmp_path / "state" / "audit.jsonl").stat().st_size < 1000


# --- settings ---


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"test": "1"}, "TEST must be a share"),
        ({"test": "nan"}, "TEST must be a share"),
        ({"test": "many"}, "TEST=many cannot be read"),
        ({"split_seed": "-1"}, "SPLIT_SEED must be at least 0"),
        ({"min_samples": "0"}, "MIN_SAMPLES must be at least 1"),
        ({"min_class": "x"}, "MIN_CLASS=x cannot be read"),
        ({"deadline": "0"}, "DEADLINE must be a number of seconds above 0"),
        ({"deadline": "nan"}, "DEADLINE must be a number of seconds above 0"),
        ({"allow_splits": "maybe"}, "wanted yes or no"),
    ],
)
def test_settings_outside_their_domain_are_refused(config: dict[str, str], words: str) -> None:
    with pytest.raises(fs.ParameterError, match=words):
        Policy.of(config)


def test_a_node_without_settings_has_the_careful_ones() -> None:
    names = ("test", "split_seed", "min_samples", "min_class", "deadline", "allow_splits")
    assert Policy.of({}) == Policy.of(dict.fromkeys(names, "")) == Policy()
    config = {"client": "a", "data": "d", "state": "s", "min_class": "9", "allow_splits": "yes", "test": "official"}
    assert FileSite.of(config).policy == Policy("official", min_class=9, allow_splits=True)
