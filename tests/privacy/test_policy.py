"""What a site's own rules refuse, at the site and in a ledger's contributions. `tests/security` has the split's."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import fedsolve as fs
from fedsolve.errors import ParameterError
from fedsolve.privacy.policy import Policy, Refusal
from fedsolve.runtime.fitting import NAME as FITTING
from fedsolve.runtime.job import Job, agree
from fedsolve.runtime.sites import FileSite, opening, respond
from tests.runtime.test_cli import Command


def site_of(tmp_path: Path, **rules: str) -> FileSite:
    rows = int(rules.pop("rows", "60"))
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "data.npz", x=rng.normal(size=(rows, 4)), y=np.arange(rows) % 2)
    config = {"client": "ward-a", "data": str(tmp_path / "data.npz"), "state": str(tmp_path / "state"), **rules}
    return FileSite.of(config)


def answer(site: FileSite, job: Job) -> object:
    task = agree({"ward-a": site.describe(job)}, job)
    return respond(site, job, task, opening(job, task.described, {}), "run1")


ALLOWED = {
    "allow_methods": "afl,fedhip",
    "allow_maps": "unit, clip",
    "max_parameters": "0.33",
    "max_leverage": "0.9",
    "min_persons": "5",
}


def test_what_is_allowed_is_answered(tmp_path: Path) -> None:
    site = site_of(tmp_path, **ALLOWED)
    answer(site, Job("afl").identified())
    answer(site, Job("fedhip", features="unit").identified())


@pytest.mark.parametrize(
    ("job", "words"),
    [
        (Job("fedprior"), "it answers to afl, fedhip; the server asks for 'fedprior'"),
        (Job("afl", features="random:8"), "it takes the feature maps unit, clip; the server asks for 'random'"),
        (Job("afl", features="unit+random:8"), "asks for 'random'"),
    ],
)
def test_a_job_outside_the_policy_is_refused_before_data_are_read(job: Job, words: str, tmp_path: Path) -> None:
    site = site_of(tmp_path, **ALLOWED)
    (tmp_path / "data.npz").unlink()
    with pytest.raises(Refusal, match=words):
        site.describe(job)
    with pytest.raises(Refusal, match=words):
        site.client(job, fs.Task(fs.Classes(2), (4,)))


@pytest.mark.parametrize(("mode", "words"), [("secure", "use --secure"), ("noisy", "use --epsilon")])
def test_a_site_is_not_asked_down_to_plain(mode: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(Refusal, match=words):
        site_of(tmp_path, privacy=mode).describe(Job("afl").identified())


def test_modes() -> None:
    secure, noisy = Policy(privacy="secure", quorum=4), Policy(privacy="noisy", epsilon_max=2.0)
    secure.check_mode(quorum=4, epsilon=None)
    with pytest.raises(Refusal, match="at least 4 sites; the server asks for sums of 3"):
        secure.check_mode(quorum=3, epsilon=None)
    noisy.check_mode(quorum=0, epsilon=2.0)
    with pytest.raises(Refusal, match="it spends epsilon 2 at most; the server asks for 3"):
        noisy.check_mode(quorum=0, epsilon=3.0)


def test_sums_that_disclose_too_much_are_refused_and_only_the_site_reads_why(tmp_path: Path) -> None:
    with pytest.raises(Refusal, match="its sums would disclose single records") as refusal:
        answer(site_of(tmp_path, rows="14", max_parameters="0.33", min_class="2"), Job("afl").identified())
    assert "5 features for 11 samples" in refusal.value.details
    assert "11" not in str(refusal.value)
    answer(site_of(tmp_path, rows="14", min_class="2"), Job("afl").identified())  # off, unless the site says how much


def test_columns_and_persons(tmp_path: Path) -> None:
    lines = ["age,weight,patient,label"] + [f"{30 + k},{60 + k % 7},p{k % 3},{'ab'[k % 2]}" for k in range(40)]
    (tmp_path / "data.csv").write_text("\n".join(lines))
    config = {"client": "a", "data": str(tmp_path / "data.csv"), "state": str(tmp_path / "s"), "person": "patient"}
    columns, job = {**config, "features": "columns"}, Job(FITTING, {"features": "columns"})
    with pytest.raises(Refusal, match="columns that it does not give away") as refusal:
        FileSite.of({**columns, "allow_columns": "age"}).describe(job)
    assert "weight" in refusal.value.details
    assert "weight" not in str(refusal.value)
    with pytest.raises(Refusal, match="fewer than 4 persons"):
        FileSite.of({**columns, "min_persons": "4"}).describe(job)


@pytest.mark.parametrize(
    ("rules", "words"),
    [
        ({"max_parameters": "0"}, "MAX_PARAMETERS must be above 0"),
        ({"max_leverage": "2"}, "MAX_LEVERAGE must be above 0 and at most 1"),
        ({"epsilon_max": "nan"}, "EPSILON_MAX"),
        ({"privacy": "none"}, "PRIVACY must be plain, secure or noisy"),
        ({"quorum": "1"}, "QUORUM must be at least 2"),
        ({"min_persons": "0"}, "MIN_PERSONS must be at least 1"),
        ({"max_parameters": "x"}, "cannot be read"),
    ],
)
def test_no_policy(rules: dict[str, str], words: str) -> None:
    with pytest.raises(ParameterError, match=words):
        Policy.of(rules)


def test_a_contribution_that_discloses_records_is_not_written(command: Command) -> None:
    rng = np.random.default_rng(0)
    np.savez("few.npz", x=rng.normal(size=(9, 4)), y=np.arange(9) % 2)
    np.savez("many.npz", x=rng.normal(size=(200, 4)), y=np.arange(200) % 2)

    def ledger(*words: str) -> str:
        """What goes wrong."""
        return command("ledger", *words).err

    assert not ledger("create", "f.db", "--classes", "2", "--inputs", "4")
    assert not ledger("invite", "f.db", "--out", "i.st")
    few = ("contribute", "i.st", "--client", "a", "--data", "few.npz", "--out", "a.st")
    failure = ledger(*few)
    assert "nothing was written" in failure
    assert "5 features for 9 samples" in failure
    assert not Path("a.st").exists()
    Path("site.env").write_text("MIN_CLASS=2\nMAX_PARAMETERS=1\n")
    assert not ledger(*few, "--policy", "site.env")
    assert not ledger(*few, "--anyway")
    assert "give one of them" in ledger(*few, "--anyway", "--policy", "site.env")
    assert not ledger("contribute", "i.st", "--client", "b", "--data", "many.npz", "--out", "b.st")
