"""`--features standardise` from the command line to predictions, and where it cannot be fitted."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import fedsolve as fs
from fedsolve.privacy.policy import Policy
from fedsolve.runtime.job import Job
from fedsolve.runtime.sites import FileSite
from tests.core.test_standard import moments_of_time
from tests.runtime.test_cli import Command


def test_on_the_command_line(command: Command, tmp_path: Path) -> None:
    x, y = moments_of_time()
    lines = [f"{time!r},{other!r},{label}" for (time, other), label in zip(x.tolist(), y.tolist(), strict=True)]
    (tmp_path / "late.csv").write_text("\n".join(["time,other,label", *lines]) + "\n")
    options = [
        "--data",
        "late.csv",
        "--columns",
        "numbers",
        "--clients",
        "4",
        "--method",
        "afl",
        "--set",
        "intercept=true",
    ]
    plain, kept = (command("run", *options, "--out", out, *more) for out, more in
                   (("plain", []), ("kept", ["--features", "standardise"])))  # fmt: skip
    assert "warning: the digits of feature 'time'" in plain.out and "warning" not in kept.out
    result = fs.Result.load(tmp_path / "kept")
    assert result.settings["features"] == "standardise" and (result.accuracy.pooled or 0.0) > 0.95
    done = command("predict", "kept/models/global.safetensors", "--data", "late.csv")
    assert done.code == 0 and "accuracy" in done.err
    refused = command("ledger", "create", "fed.db", "--features", "standardise", "--like", "late.csv")
    assert refused.code == 2 and "standardise:ORIGIN/SCALE" in refused.err
    fitted = str(fs.load_model(tmp_path / "kept" / "models" / "global.safetensors").task.features)
    assert command("ledger", "create", "fed.db", "--features", fitted, "--like", "late.csv").code == 0


def test_sites_take_the_words_of_a_fitted_map(tmp_path: Path) -> None:
    """The origin may be a public number; what sites then send has kept its digits."""
    x, y = moments_of_time()
    np.savez(tmp_path / "late.npz", x=x, y=y)
    words = "standardise:1.7e12/1000,0/1"
    job = Job("afl", {"intercept": True}, words).identified()
    place, rules = tmp_path / "state", Policy(test=0.0)
    with pytest.raises(fs.DataError, match="the site's own word"):
        FileSite("a", str(tmp_path / "late.npz"), place, policy=rules).describe(job)
    site = FileSite("a", str(tmp_path / "late.npz"), place, features=words, policy=rules)
    task = site.describe(job).task
    _, client = site.client(job, task)
    wanted = (x - [1.7e12, 0.0]) / [1000.0, 1.0]
    assert sorted(client.train.inputs.tolist()) == sorted(wanted.tolist())
