"""What a run prints fits the terminal."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import fedsolve as fs
from fedsolve.cli.deploy import _show_sites as show_sites
from tests.runtime.test_cli import Command, figures


def heads(out: str) -> list[str]:
    """The headings of the table of clients, those of two lines joined."""
    lines = out.strip().splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith("client-"))
    if lines[first - 1].split()[:2] == ["client", "train"] and first == 2:
        return [head.strip() for head in lines[1].split("  ") if head.strip()]
    joined: list[str] = []
    for head in lines[2].split():
        joined.append(f"over {head}" if joined[-1:] == [head] else head)
    return joined


@pytest.mark.parametrize("method", ["fedhip", "fedprior", "local", "afl"])
@pytest.mark.parametrize("width", [80, 100, 200])
def test_the_table_fits_the_terminal_and_nothing_is_lost(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str, width: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    done = command("run", "--method", method, "--clients", "5", "--out", "out")
    assert done.code == 0
    lines = done.out.strip().splitlines()
    rows = [line for line in lines if line.startswith("client-")]
    assert len(rows) == 5
    assert all(len(line) <= width for line in lines)
    clients = figures(tmp_path / "out")["clients"]
    chosen = sorted(clients["client-00"].get("chosen", {}))
    words = heads(done.out)
    assert words[:4] == ["client", "train", "test", "accuracy"]
    assert len(words) == len(set(words))
    assert ("over alone" in words) == (method != "local")
    assert ("over global" in words) == (method in ("fedhip", "fedprior"))
    shown = [name for name in chosen if name in words]
    note = " ".join(done.out.split())
    if shown == chosen:
        assert "also chosen" not in note
    else:
        assert shown == []
        assert f"(also chosen for each client, in result.json: {', '.join(chosen)})" in note
    for row in rows:
        client = clients[row.split()[0]]
        assert [float(cell) for cell in row.replace("%", "").split()[1:4]] == pytest.approx(
            [client["train"], client["test"], 100 * client["accuracy"]], abs=0.051
        )
        if shown:
            assert [float(cell) for cell in row.split()[-len(shown) :]] == pytest.approx(
                [client["chosen"][name] for name in shown], rel=0.01
            )
    assert (width == 200) <= (shown == chosen)  # where there is room, all are shown


def test_a_method_below_the_best_constant_answer_is_told_so(command: Command, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(120, 30)), (np.arange(120) % 10 == 0).astype(int)  # noise, and a class of nine tenths
    np.savez(tmp_path / "noise.npz", x=x, y=y)
    words = ("run", "--data", str(tmp_path / "noise.npz"), "--partition", "iid", "--clients", "2", "--test", "0.5")
    done = command(*words, "--method", "afl", "--set", "ridge=0", "--out", str(tmp_path / "out"))
    entry = figures(tmp_path / "out")
    assert entry["accuracy"]["pooled"] < entry["baseline"]["accuracy"]
    share = f"{100 * entry['baseline']['accuracy']:.1f} %"
    assert f"afl is below the best constant answer: each client's commonest class is right for {share}" in " ".join(
        done.out.split()
    )
    done = command("run", "--out", str(tmp_path / "digits"))
    assert "below the best constant answer" not in done.out


@pytest.mark.parametrize("clients", [6, 1])
def test_groups_are_told_in_a_line_and_their_models_predict(command: Command, tmp_path: Path, clients: int) -> None:
    options = ["--method", "pfedacnnl", "--set", "network=lr", "--set", "groups=2", "--partition", "dirichlet:0.1"]
    done = command("run", *options, "--clients", str(clients), "--out", "out")
    assert done.code == 0
    groups = figures(tmp_path / "out")["groups"]
    sizes = sorted(len(group["members"]) for group in groups.values())
    assert sum(sizes) == clients
    wanted = "1 group of 1 client:" if clients == 1 else f"2 groups of {sizes[0]} to {sizes[1]} clients:"
    words = " ".join(done.out.split())
    assert wanted in words
    assert f"({clients} personal), groups/ ({len(groups)})" in words
    x = np.linspace(0, 16, 3 * 64).reshape(3, 64)
    np.savez(tmp_path / "new.npz", x=x)
    done = command("predict", "out/groups/0.safetensors", "--data", "new.npz")
    model = fs.load_model(tmp_path / "out" / "groups" / "0.safetensors")
    assert (done.code, done.out.split()) == (0, [str(label) for label in model.predict(x)])


def test_runs_without_groups_say_nothing_of_them(command: Command) -> None:
    assert "group" not in command("run", "--clients", "3", "--out", "out").out


def test_groups_are_told_after_a_run_on_sites(capsys: pytest.CaptureFixture[str]) -> None:
    federation = fs.load("wards").split("by-client", test=0.5)
    show_sites(fs.run(fs.PFedACnnL(network="lr", groups=2), federation), Path("out"))
    assert "2 groups of 2 to 3 clients: who is in which" in capsys.readouterr().out


def late(folder: Path) -> None:
    """A table with a column of unix milliseconds within one second, which is all that the label depends on."""
    rng = np.random.default_rng(0)
    moments, pulses = rng.integers(0, 1000, 300), rng.normal(80, 9, 300).round(1)
    rows = [
        f"{1_700_000_000_000 + t},{p},{'late' if t > 500 else 'early'}" for t, p in zip(moments, pulses, strict=True)
    ]
    (folder / "late.csv").write_text("\n".join(["time,pulse,label", *rows]) + "\n")


@pytest.mark.parametrize("more", [[], ["--quiet"]])
def test_lost_digits_are_printed_with_the_name_of_the_column(command: Command, tmp_path: Path, more: list[str]) -> None:
    """0.1.0 said nothing, and the model was worth nothing."""
    late(tmp_path)
    options = [
        "--data",
        "late.csv",
        "--clients",
        "4",
        "--method",
        "afl",
        "--columns",
        "numbers",
        "--set",
        "ridge=0",
        "--out",
        "out",
    ]
    done = command("run", *options, *more)
    assert done.code == 0
    assert (done.err if more else done.out).count("warning: the digits of feature 'time' were lost") == 1
    assert "pulse" not in figures(tmp_path / "out")["warnings"][0]


def test_lost_digits_are_printed_by_compare(command: Command, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="compare needs it for its page")
    late(tmp_path)
    options = [
        "--data",
        "late.csv",
        "--clients",
        "4",
        "--methods",
        "afl",
        "--set",
        "afl.ridge=0",
        "--columns",
        "numbers",
        "--seeds",
        "0",
    ]
    assert "warning: the digits of feature 'time'" in command("compare", *options, "--out", "cmp").out


def test_lost_digits_are_printed_by_a_ledger(command: Command, tmp_path: Path) -> None:
    late(tmp_path)
    terms = ["--method", "fedhip", "--set", "intercept=true", "--like", "late.csv"]
    assert command("ledger", "create", "fed.db", *terms).code == 0
    assert command("ledger", "invite", "fed.db", "--out", "invitation.st").code == 0
    site = ["--data", "late.csv", "--client", "a"]
    assert command("ledger", "contribute", "invitation.st", *site, "--out", "a.st").code == 0
    assert command("ledger", "add", "fed.db", "a.st").code == 0
    assert "warning: the digits of feature 'time'" in command("ledger", "solve", "fed.db", "--out", "solved").out
    own = command("ledger", "personal", "solved/message.safetensors", *site, "--out", "own.safetensors")
    assert "warning: the model of a is not to be trusted: the digits of feature 'time'" in own.out


def test_lost_digits_are_printed_after_a_run_on_sites(capsys: pytest.CaptureFixture[str]) -> None:
    x = np.column_stack([1.7e12 + np.arange(40.0), np.random.default_rng(0).normal(size=40)])
    federation = fs.Federation.from_arrays({"a": {"train": (x, np.arange(40) // 20)}})
    with pytest.warns(fs.PrecisionWarning):
        result = fs.run(fs.AFL(intercept=True, ridge=0.0), federation)
    show_sites(result, Path("out"))
    assert "warning: the digits of feature 0 were lost" in capsys.readouterr().out
