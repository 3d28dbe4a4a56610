"""Secure runs that fill a ledger: what is kept is the sum and nothing less, in one process, on Flower, by commands."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedsolve as fs
from fedsolve import arrays, parameters
from fedsolve.ledger.store import Ledger
from fedsolve.study.experiment import Settings, execute
from tests.conftest import relative
from tests.runtime.test_cli import Command

pytest.importorskip("cryptography")

CLOSED_FORM = [fs.AFL(ridge=1.0), fs.FedHiP(), fs.FedPrior(), fs.APFL()]


def digits(clients: int = 4) -> fs.Federation:
    return fs.load("digits").split(fs.dirichlet(0.5), clients=clients, seed=0)


@pytest.mark.parametrize("method", CLOSED_FORM, ids=lambda method: method.name)
def test_a_secure_run_puts_its_sum_in_and_the_ledger_gives_its_model(tmp_path: Path, method: fs.Method) -> None:
    federation, told = digits(), list[Any]()
    with Ledger.join(tmp_path / "fed.db", method, federation.task) as ledger:

        def keep(clients: frozenset[str], total: arrays.Arrays) -> None:
            told.append((clients, dict(total)))
            ledger.add_cohort(clients, total)

        result = fs.run(method, federation, secure=fs.Secure(on_sum=keep))
        [(clients, total)] = told  # once, of the replies; figures are nobody's contribution
        assert clients == frozenset(federation.clients)
        [(member, part)] = ledger.parts()
        assert (member.client, member.cohort) == ("cohort-1", 4)
        assert arrays.same(part, total) and arrays.same(ledger.total(), total)
        assert int(total["count"]) == sum(len(client.train) for client in federation.clients.values())
        solved = ledger.solve()
        for name, array in result.state.items():
            np.testing.assert_allclose(solved.state[name], array, rtol=1e-9, atol=1e-12)
        assert all(ledger.cohort_of(name) == "cohort-1" for name in federation.clients)


def test_late_clients_form_the_next_cohort(tmp_path: Path) -> None:
    """The model of two cohorts is that of a plain run over all their members."""
    method, federation = fs.AFL(ridge=1.0), digits(7)
    names = sorted(federation.clients)
    with Ledger.join(tmp_path / "fed.db", method, federation.task) as ledger:
        for absent in (names[4:], names[:4]):
            fs.run(method, federation, absent=absent, secure=fs.Secure(on_sum=ledger.add_cohort))
        assert [(member.client, member.cohort) for member in ledger.members()] == [("cohort-1", 4), ("cohort-2", 3)]
        wanted = fs.run(method, federation).state["weight"]
        assert relative(ledger.solve().state["weight"], wanted) < 1e-9
        with pytest.raises(fs.DataError, match=r"^the cohort is refused: 'client-02' is a member of 'cohort-1'"):
            fs.run(method, federation, absent=names[:2], secure=fs.Secure(on_sum=ledger.add_cohort))
        ledger.remove("cohort-1")
        late = fs.run(method, federation, absent=names[:4]).state["weight"]
        assert relative(ledger.solve().state["weight"], late) < 1e-9


def test_noise_and_single_replies_are_not_kept(tmp_path: Path) -> None:
    with pytest.raises(fs.ParameterError, match="without --ledger"):
        execute(Settings(secure=True, epsilon=1.0, features="unit"), ledger=tmp_path / "l.db")
    with pytest.raises(fs.ParameterError, match=r"fs.Secure\(on_sum=\) is told of sums$"):
        fs.run(fs.AFL(), digits(), secure=fs.Secure(), on_reply=lambda client, reply: None)
    assert not (tmp_path / "l.db").exists()


# --- commands ---


def test_a_secure_run_a_ledger_and_who_leaves_by_commands(command: Command, tmp_path: Path) -> None:
    run = ("run", "--no-alone", "--quiet", "--clients", "5", "--secure", "--out", "out", "--ledger", "fed.db")
    done = command(*run)
    assert done.code == 0, done.err
    listed = command("ledger", "list", "fed.db").out
    assert "cohort-1, 5 members" in listed and "fedprior: 5 clients" in listed and "client-0" not in listed
    assert "the sum over 5 clients" in " ".join(command("ledger", "list", "fed.db", "--journal").out.split())
    solved = command("ledger", "solve", "fed.db", "--out", "solved")
    assert solved.out.startswith("5 clients, ")
    wanted, found = (fs.load_model(f"{place}/models/global.safetensors").arrays for place in ("out", "solved"))
    assert relative(found["weight"], wanted["weight"]) < 1e-9
    assert command(*run).code == 0  # again: nothing changes
    assert "whole: 5 clients" in command("ledger", "verify", "fed.db").out
    refused = command("ledger", "remove", "fed.db", "client-02")
    assert refused.code == 2 and "remove 'cohort-1' as a whole" in " ".join(refused.err.split())
    fewer = command(*run, "--seed", "1")
    assert fewer.code == 2 and "'client-00' is a member of 'cohort-1'" in " ".join(fewer.err.split())
    removed = command("ledger", "remove", "fed.db", "cohort-1")
    assert removed.code == 0 and "cohort-1 is out; 0 clients are in" in removed.out


@pytest.mark.parametrize("method", ["fedhip", "fedprior"])
def test_a_member_makes_its_own_model_as_one_that_is_counted(command: Command, tmp_path: Path, method: str) -> None:
    """Counted or not is told by its name: nobody knows its part of the sum."""
    run = (
        "run",
        "--no-alone",
        "--quiet",
        "--data",
        "wards",
        "--partition",
        "by-client",
        "--test",
        "0",
        "--method",
        method,
    )
    done = command(*run, "--secure", "--out", "out", "--ledger", "fed.db")
    assert done.code == 0, done.err
    assert command("ledger", "solve", "fed.db", "--out", "solved").code == 0
    personal = ("ledger", "personal", "solved/message.safetensors", "--data", "wards", "--client", "trauma")
    told = command(*personal, "--out", "trauma.model")
    assert told.code == 0 and "whose data are in the federation's sum" in told.out, told.err
    found = fs.load_model("trauma.model").arrays
    for name, array in fs.load_model("out/models/trauma.safetensors").arrays.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-7, atol=1e-9)


# --- on Flower ---


def test_sites_of_a_secure_sum_are_one_contribution(tmp_path: Path) -> None:
    pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedsolve[flower]'")
    from fedsolve import deploy
    from fedsolve.runtime.flower import Rules, make_client_app, serve, simulate
    from fedsolve.runtime.job import Job
    from tests.runtime.grid import InProcessGrid
    from tests.runtime.test_flower import wards
    from tests.runtime.test_secure_sites import job_of, keyed, peers_of

    method, federation = fs.FedHiP(beta=1.0), digits()
    with Ledger.join(tmp_path / "simulated.db", method, federation.task) as ledger:
        job = Job(method.name, parameters.values(method), quorum=3)
        result = simulate(job, lambda: federation, keeper=ledger)
        assert relative(ledger.solve().state["weight"], result.state["weight"]) < 1e-9
        assert [(member.client, member.cohort) for member in ledger.members()] == [("cohort-1", 4)]

    grid = InProcessGrid(make_client_app(), keyed(wards(tmp_path, 4), tmp_path))
    rules, peers = Rules(wait=2.0, timeout=5.0), peers_of(tmp_path)
    path = tmp_path / "sites.db"
    outcome, task, _ = serve(
        grid, job_of(method), rules, print, peers=peers, keeping=lambda *terms: Ledger.join(path, *terms)
    )
    with Ledger.join(path, method, task) as ledger:
        assert relative(ledger.solve().state["weight"], outcome.state["weight"]) < 1e-9
        assert ledger.cohort_of("ward-b") == "cohort-1" and len(ledger.members()) == 1
    noisy = job_of(method, noise={"epsilon": 1.0, "delta": 1e-5})
    with pytest.raises(fs.ParameterError, match="--epsilon is without --ledger"):
        deploy.run(tmp_path, noisy, rules, tmp_path / "out", print, path)
    with pytest.raises(fs.ParameterError, match="nothing is kept of noisy replies"):
        serve(grid, noisy, rules, print, peers=peers, keeping=lambda *terms: Ledger.join(path, *terms))
