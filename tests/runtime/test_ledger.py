"""The ledger from outside: processes that die, processes side by side, damaged files, and the commands."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedsolve as fs
from fedsolve import arrays as named
from fedsolve import codec
from fedsolve.data.reading import Reading
from fedsolve.features.maps import parse
from fedsolve.ledger.contribution import Contribution
from fedsolve.ledger.store import Ledger
from fedsolve.ledger.terms import Terms
from tests.conftest import relative
from tests.core.test_ledger import CLASSES, FEATURES, TASK, contribution, raw
from tests.runtime.test_cli import Command
from tests.security.test_ledger_attacks import key_pair

# --- a process that dies ---

WRITER = """
import sys
import numpy as np
import fedsolve as fs
from fedsolve.ledger.contribution import Contribution
from fedsolve.ledger.store import Ledger
path, seed, changes = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
rng = np.random.default_rng(seed)
with Ledger(path) as ledger:
    print("ready", flush=True)
    for _ in range(changes):
        number = int(rng.integers(60))
        name = f"{seed % 7}-{number:02d}"
        mine = np.random.default_rng([seed, number, int(rng.integers(3))])
        moments = fs.Moments.of(mine.normal(size=(20, 40)), mine.integers(3, size=20), classes=3)
        held = any(member.client == name for member in ledger.members())
        if held and rng.random() < 0.3:
            ledger.remove(name)
            print("out", name, flush=True)
        else:
            given = Contribution.of(name, moments.arrays())
            ledger.add(given)
            print("in", name, given.digest, flush=True)
"""


def writer(path: Path, seed: int, changes: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", WRITER, str(path), str(seed), str(changes)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def followed(lines: list[str], held: dict[str, str]) -> None:
    """What acknowledged changes make of who is in."""
    for line in lines:
        words = line.split()
        if len(words) == 3 and words[0] == "in":
            held[words[1]] = words[2]
        elif len(words) == 2 and words[0] == "out":
            held.pop(words[1], None)


def survive(path: Path, kills: int) -> None:
    Ledger.create(path, fs.AFL(ridge=0.0, intercept=False), fs.Task(fs.Classes(3), (40,))).close()
    held: dict[str, str] = {}
    rng, acknowledged = np.random.default_rng(0), 0
    for seed in range(kills):
        process = writer(path, seed, 1000)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        started, changes = time.monotonic(), int(rng.integers(1, 12))
        lines = [process.stdout.readline() for _ in range(changes)]
        time.sleep(float(rng.random()) * (time.monotonic() - started) / changes)  # somewhere within the next change
        process.send_signal(signal.SIGKILL)
        lines += process.stdout.read().splitlines()
        process.stdout.close()
        assert process.wait() == -signal.SIGKILL
        acknowledged += len(lines)
        before = dict(held)
        followed(lines, held)
        with Ledger(path) as ledger:
            check = ledger.verify()
            assert not check.faults and check.drift == 0.0
            found = {member.client: member.digest for member in ledger.members()}
            # The one change that was under way may have happened, and nothing else.
            apart = {name for name in found.keys() | held.keys() if found.get(name) != held.get(name)}
            assert len(apart) <= 1, (apart, before.keys())
            total = fs.Moments.zero(40, 3)
            for _, part in ledger.parts():
                total = total + fs.Moments.from_arrays(part)
            assert int(ledger.total()["count"]) == total.count == 20 * len(found)
            assert relative(ledger.total()["triangle"] + 1.0, total.triangle + 1.0) < 1e-13
        held = found
    assert acknowledged > 3 * kills  # they were killed at work


def test_a_process_that_is_killed_loses_nothing_and_counts_nothing_twice(tmp_path: Path) -> None:
    survive(tmp_path / "fed.db", 8)


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_a_hundred_kills(tmp_path: Path) -> None:
    survive(tmp_path / "fed.db", 100)


def test_processes_side_by_side_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "fed.db"
    Ledger.create(path, fs.AFL(ridge=0.0, intercept=False), fs.Task(fs.Classes(3), (40,))).close()
    processes = [writer(path, seed, 60) for seed in (1, 2, 3)]
    held: dict[str, str] = {}
    for process in processes:
        out, _ = process.communicate(timeout=200)
        assert process.returncode == 0
        followed(out.splitlines(), held)
    with Ledger(path) as ledger:
        assert {member.client: member.digest for member in ledger.members()} == held
        check = ledger.verify()
        assert not check.faults and check.drift == 0.0
        events = [event for event in ledger.journal() if event.event != "created"]
        assert len(events) >= len(held)


# --- a fuzzer ---

Damage = Callable[[np.random.Generator, dict[str, Any], fs.Moments], None]


def negative_eigenvalue(rng: np.random.Generator, arrays: dict[str, Any], moments: fs.Moments) -> None:
    values, vectors = np.linalg.eigh(moments.gram)
    which = int(rng.integers(len(values)))
    values[which] = -float(rng.uniform(1e-6, 1.0)) * values[-1]
    bent = vectors @ np.diag(values) @ vectors.T
    arrays["triangle"] = fs.Moments.from_gram((bent + bent.T) / 2, moments.cross, moments.count).triangle


def one_entry(rng: np.random.Generator, arrays: dict[str, Any], moments: fs.Moments) -> None:
    """An entry off the diagonal that no samples can have."""
    gram, (i, j) = moments.gram, rng.choice(len(moments.diagonal()), 2, replace=False)
    gram[i, j] = gram[j, i] = 1.5 * np.sqrt(gram[i, i] * gram[j, j]) + 1.0
    arrays["triangle"] = fs.Moments.from_gram(gram, moments.cross, moments.count).triangle


def not_finite(rng: np.random.Generator, arrays: dict[str, Any], moments: fs.Moments) -> None:
    name = str(rng.choice(["triangle", "cross"]))
    arrays[name] = arrays[name].copy()
    arrays[name].reshape(-1)[rng.integers(arrays[name].size)] = rng.choice([np.nan, np.inf, -np.inf])


def wrong_shape(rng: np.random.Generator, arrays: dict[str, Any], moments: fs.Moments) -> None:
    kind = int(rng.integers(5))
    if kind == 0:
        arrays["triangle"] = arrays["triangle"][: -int(rng.integers(1, 9))]
    elif kind == 1:
        arrays["cross"] = arrays["cross"][:, :-1].copy()
    elif kind == 2:
        arrays["cross"] = np.ascontiguousarray(arrays["cross"].T)
    elif kind == 3:
        arrays["more"] = np.zeros(3)
    else:
        del arrays[str(rng.choice(list(arrays)))]


def wrong_type(rng: np.random.Generator, arrays: dict[str, Any], moments: fs.Moments) -> None:
    name = str(rng.choice(["triangle", "cross", "count"]))
    arrays[name] = arrays[name].astype("float32" if name != "count" else str(rng.choice(["float64", "int32"])))


def asymmetric(rng: np.random.Generator, arrays: dict[str, Any], moments: fs.Moments) -> None:
    """A square matrix where a triangle belongs."""
    gram = moments.gram
    gram[0, 1] += 1.0
    arrays["triangle"] = gram.reshape(-1) if rng.random() < 0.5 else gram


def wrong_count(rng: np.random.Generator, arrays: dict[str, Any], moments: fs.Moments) -> None:
    # Without a column of ones a count that is too large cannot be told from samples without features.
    ones = moments.triangle.size == (FEATURES + 1) * (FEATURES + 2) // 2
    choices = [0, -1, 1, moments.count // 3] + [moments.count + 1, 3 * moments.count, moments.count - 1] * ones
    arrays["count"] = np.array(int(rng.choice(choices)), dtype=np.int64)


def wrong_sums(rng: np.random.Generator, arrays: dict[str, Any], moments: fs.Moments) -> None:
    arrays["cross"] = arrays["cross"] * float(rng.choice([-30.0, 10.0, 100.0]))


def scaled(rng: np.random.Generator, arrays: dict[str, Any], moments: fs.Moments) -> None:
    """Longer than the declared bound."""
    factor = float(rng.uniform(30.0, 1e6))
    arrays["triangle"], arrays["cross"] = factor * arrays["triangle"], factor * arrays["cross"]


DAMAGES = [
    negative_eigenvalue, one_entry, not_finite, wrong_shape, wrong_type, asymmetric, wrong_count, wrong_sums, scaled,
]  # fmt: skip
OTHERS = ["truncated", "flipped", "replayed", "elsewhere", "other method", "nameless", "not a file"]


def damaged(rng: np.random.Generator, terms: Terms, inside: list[Contribution], kind: str, number: int) -> bytes:
    honest = contribution(terms, 1000 + number, samples=int(rng.integers(20, 60)))
    data = bytes(honest.write(terms))
    if kind == "truncated":
        return data[: int(rng.integers(len(data)))]
    if kind == "flipped":
        place = int(rng.integers(len(data)))
        return data[:place] + bytes([data[place] ^ int(rng.integers(1, 256))]) + data[place + 1 :]
    if kind == "replayed":
        old = inside[int(rng.integers(len(inside)))]
        return bytes(Contribution.of(f"new-{number}", old.arrays).write(terms))
    if kind == "elsewhere":
        task = fs.Task(fs.Classes(CLASSES), (FEATURES,), parse("unit"))
        return bytes(honest.write(Terms.make(terms.method, task)))
    if kind == "other method":
        return bytes(honest.write(Terms.make(fs.APFL(d_primary=FEATURES), TASK)))
    if kind == "nameless":
        told = codec.read(data)[1]
        told["client"] = str(rng.choice(["", "../x", "a/b", "global", ".x", "x" * 300]))
        return bytes(codec.encode(honest.arrays, told))
    if kind == "not a file":
        return rng.bytes(int(rng.integers(0, 5000)))
    arrays = dict(honest.arrays)
    {damage.__name__: damage for damage in DAMAGES}[kind](rng, arrays, fs.Moments.from_arrays(honest.arrays))
    return bytes(Contribution.of(honest.client, arrays).write(terms))  # with a proper digest: hostile, not only broken


@pytest.mark.parametrize(
    "method",
    [fs.FedHiP(beta=1.0, intercept=False), fs.FedPrior(), fs.AFL(intercept=True, ridge=0.0)],
    ids=["fedhip", "fedprior", "afl"],
)
def test_five_hundred_damaged_contributions_are_refused_and_leave_no_trace(tmp_path: Path, method: fs.Method) -> None:
    rng = np.random.default_rng(7)
    with Ledger.create(tmp_path / "fed.db", method, TASK, bound=40.0) as ledger:
        inside = [contribution(ledger.terms, number) for number in range(20)]
        for each in inside:
            ledger.add(each)
        before, total = raw(ledger), ledger.total()
        kinds = [damage.__name__ for damage in DAMAGES] + OTHERS
        paths = [tmp_path / f"file-{number}.st" for number in range(500)]
        for number, path in enumerate(paths):
            path.write_bytes(damaged(rng, ledger.terms, inside, kinds[number % len(kinds)], number))
        for number, answer in enumerate(ledger.offer_files(paths)):
            kind = kinds[number % len(kinds)]
            # A flipped bit may lie in the padding of the header, and then nothing was damaged.
            harmless = kind == "flipped" and answer.event == "added"
            if harmless:
                assert answer.client == f"site-{1000 + number}"
                ledger.remove(answer.client)
                continue
            assert answer.event == "rejected" and answer.reason, (kind, number, answer)
            last = ledger.journal()[-1]
            assert last.event == "rejected" and last.reason == answer.reason
        assert named.same(ledger.total(), total)
        assert raw(ledger)[0] == before[0]
        assert not ledger.verify().faults


@pytest.mark.parametrize(
    "told",
    [
        {"client": ["a"]}, {"client": 7}, {"client": "\ud800"}, {"space": 3}, {"space": "\ud800" * 9},
        {"settings": "x" * 10**6}, {"terms": None}, {"digest": {}}, {"made": "terms"}, {"fedsolve": "0"}, {"seal": ""},
    ],
    ids=str,
)  # fmt: skip
def test_strange_words_beside_good_arrays_are_refused(tmp_path: Path, told: dict[str, Any]) -> None:
    with Ledger.create(tmp_path / "fed.db", fs.AFL(ridge=0.0, intercept=False), TASK) as ledger:
        honest = contribution(ledger.terms, 1)
        data = bytes(honest.write(ledger.terms))
        length = int.from_bytes(data[:8], "little")
        header = json.loads(data[8 : 8 + length])
        header["__metadata__"] |= {"terms": "other"} | told
        text = json.dumps(header).encode()
        (tmp_path / "file.st").write_bytes(len(text).to_bytes(8, "little") + text + data[8 + length :])
        [answer] = ledger.offer_files([tmp_path / "file.st"])
        assert answer.event == "rejected" and answer.reason
        assert len(ledger.journal()[-1].reason) <= 500 and not ledger.members()


def test_refused_contributions_leave_every_bit(tmp_path: Path) -> None:
    with Ledger.create(tmp_path / "fed.db", fs.AFL(ridge=0.0, intercept=False), TASK) as ledger:
        for number in range(5):
            ledger.add(contribution(ledger.terms, number))
        before = raw(ledger)
        rng = np.random.default_rng(0)
        paths = [tmp_path / f"file-{number}.st" for number in range(45)]
        for number, path in enumerate(paths):
            kind = DAMAGES[number % (len(DAMAGES) - 1)].__name__  # no bound is declared here
            path.write_bytes(damaged(rng, ledger.terms, [], kind, number))
        assert [answer.event for answer in ledger.offer_files(paths)] == 45 * ["rejected"]
        assert raw(ledger) == before
        assert sum(event.event == "rejected" for event in ledger.journal()) == 45


# --- the commands ---


def wards(folder: Path) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 3))
    y = np.where(x[:, 0] + 0.3 * rng.normal(size=300) > 0, "ill", "well")
    for number, ward in enumerate("abcde"):
        rows = [",".join([*map(str, x[i]), y[i]]) for i in range(number, 300, 5)]
        (folder / f"{ward}.csv").write_text("age,pulse,weight,label\n" + "\n".join(rows) + "\n")
    (folder / "all.csv").write_text(
        "age,pulse,weight,label,client\n"
        + "\n".join(",".join([*map(str, x[i]), y[i], "abcde"[i % 5]]) for i in range(300))
        + "\n"
    )


@pytest.mark.parametrize("method", ["afl", "fedhip", "apfl", "fedprior"])
def test_from_invitation_to_prediction(command: Command, tmp_path: Path, method: str) -> None:
    wards(tmp_path)
    sizes = ["--set", "d_primary=30", "--set", "d_refine=20"] if method == "apfl" else []
    assert command("ledger", "create", "fed.db", "--method", method, *sizes, "--like", "a.csv", "--seed", "4").code == 0
    assert command("ledger", "invite", "fed.db", "--out", "invitation.st").code == 0
    for ward in "abcde":
        made = command(
            "ledger", "contribute", "invitation.st", "--data", f"{ward}.csv", "--client", ward, "--out", f"{ward}.st"
        )
        assert made.code == 0, made.err
        assert "60 samples of 2 classes" in made.out
    late = command("ledger", "add", "fed.db", "a.st", "b.st", "c.st", "d.st")
    assert late.code == 0 and late.out.count("added") == 4
    assert command("ledger", "solve", "fed.db", "--out", "four").code == 0
    assert command("ledger", "add", "fed.db", "e.st").code == 0
    assert command("ledger", "solve", "fed.db", "--out", "five").code == 0
    shown = command("ledger", "list", "fed.db")
    assert "5 clients, 300 samples, 0 refused" in shown.out
    personal = ("ledger", "personal", "five/message.safetensors", "--client", "e", "--out", "e.model")
    found = command(*personal, "--data", "e.csv")
    assert found.code == 0 and "are in the federation's sum" in found.out, found.err
    found = command("ledger", "personal", "four/message.safetensors", "--client", "e", "--out", "x", "--data", "e.csv")
    assert "not in the federation's sum" in found.out
    assert "accuracy 0.9" in command("predict", "e.model", "--data", "e.csv").err
    # What a run of all five gives, from the same file with a column of clients.
    federation = fs.load("all.csv", reading=Reading(columns="numbers")).split("by-client", test=0.0)
    result = fs.run(fs.create(method, dict(text.split("=") for text in sizes[1::2])), federation, seed=4)
    model = fs.load_model("e.model")
    for name, array in result.models["e"].arrays.items():
        np.testing.assert_allclose(model.arrays[name], array, rtol=1e-7, atol=1e-9)
    shared = fs.load_model("five/models/global.safetensors")
    assert result.shared is not None
    np.testing.assert_allclose(shared.arrays["weight"], result.shared.arrays["weight"], rtol=1e-7, atol=1e-9)
    assert command("ledger", "remove", "fed.db", "e").code == 0
    assert "whole: 4 clients, 240 samples" in command("ledger", "verify", "fed.db").out
    assert command("ledger", "solve", "fed.db", "--out", "again").code == 0
    again, four = (codec.read_file(Path(f"{name}/state.safetensors"))[0] for name in ("again", "four"))
    assert relative(again["weight"], four["weight"]) < 1e-12
    report = command("ledger", "influence", "fed.db")
    assert report.code == 0 and "suspicion" in report.out and "harm" in report.out


def test_a_run_fills_a_ledger_that_gives_the_same_model(command: Command, tmp_path: Path) -> None:
    run = ("run", "--no-alone", "--quiet", "--clients", "8", "--out", "out")
    assert command(*run, "--ledger", "fed.db").code == 0
    assert "fedprior: 8 clients" in command("ledger", "list", "fed.db").out
    assert command("ledger", "solve", "fed.db", "--out", "solved").code == 0
    wanted, found = (fs.load_model(f"{place}/models/global.safetensors").arrays for place in ("out", "solved"))
    assert relative(found["weight"], wanted["weight"]) < 1e-9
    assert command(*run, "--ledger", "fed.db").code == 0  # again: nothing changes
    with Ledger(tmp_path / "fed.db") as ledger:
        assert sum(event.event == "added" for event in ledger.journal()) == 8
    other = command(*run, "--ledger", "fed.db", "--method", "afl")
    assert other.code == 2 and "its method is afl, not the federation's fedprior" in other.err
    other = command(*run, "--ledger", "fed.db", "--features", "unit")
    assert other.code == 2 and "its features are not the federation's: unit here, identity there" in other.err


def test_refusals_are_told_kept_and_do_not_stop_the_others(command: Command, tmp_path: Path) -> None:
    wards(tmp_path)
    command("ledger", "create", "fed.db", "--like", "a.csv", "--bound", "9")
    command("ledger", "invite", "fed.db", "--out", "i.st")
    for ward in "ab":
        command("ledger", "contribute", "i.st", "--data", f"{ward}.csv", "--client", ward, "--out", f"{ward}.st")
    command("ledger", "contribute", "i.st", "--data", "a.csv", "--client", "again", "--out", "again.st")
    (tmp_path / "cut.st").write_bytes((tmp_path / "b.st").read_bytes()[:-9])
    found = command("ledger", "add", "fed.db", "a.st", "again.st", "cut.st", "none.st", "b.st")
    assert found.code == 2 and "3 of 5 refused" in found.err
    assert "a: added" in found.out and "b: added" in found.out
    assert "again: rejected, a replay: 'a' contributed the very same statistics" in found.out
    journal = command("ledger", "list", "fed.db", "--journal").out
    assert journal.count("rejected") == 3
    assert command("ledger", "remove", "fed.db", "nobody").code == 2


def test_only_the_total_and_what_it_says_about_removal(command: Command, tmp_path: Path) -> None:
    wards(tmp_path)
    command("ledger", "create", "fed.db", "--like", "a.csv", "--total-only")
    command("ledger", "invite", "fed.db", "--out", "i.st")
    for ward in "ab":
        command("ledger", "contribute", "i.st", "--data", f"{ward}.csv", "--client", ward, "--out", f"{ward}.st")
    assert command("ledger", "add", "fed.db", "a.st", "b.st").code == 0
    refused = command("ledger", "remove", "fed.db", "a")
    assert refused.code == 2 and "--contribution FILE" in refused.err
    assert command("ledger", "remove", "fed.db", "a", "--contribution", "a.st").code == 0
    assert command("ledger", "influence", "fed.db").code == 2
    assert "only the total is kept" in command("ledger", "verify", "fed.db").out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("create", "x.db"), "takes --like DATA, or --classes and --inputs"),
        (("create", "x.db", "--classes", "3", "--inputs", "0x4"), "inputs must be a shape"),
        (("create", "x.db", "--classes", "3", "--inputs", "4", "--method", "local"), "a ledger keeps moments"),
        (("create", "x.db", "--classes", "3", "--inputs", "4", "--bound", "-1"), "bound must be a positive number"),
        (("list", "none.db"), "there is no ledger none.db"),
        (("personal", "a.csv", "--data", "a.csv", "--client", "a", "--out", "m"), "a.csv"),
        (("contribute", "a.csv", "--data", "a.csv", "--client", "a", "--out", "m"), "a.csv"),
    ],
)
def test_mistakes_are_one_line(
    command: Command,
    tmp_path: Path,
    arguments: tuple[str, ...],
    words: str,
) -> None:
    wards(tmp_path)
    before = sorted(tmp_path.iterdir())
    found = command("ledger", *arguments)
    assert found.code == 2 and words in found.err and found.err.count("\n") == 1
    assert sorted(tmp_path.iterdir()) == before


def test_a_site_with_other_features_computes_nothing(command: Command, tmp_path: Path) -> None:
    wards(tmp_path)
    command("ledger", "create", "fed.db", "--like", "a.csv", "--features", "random:9,relu,1")
    command("ledger", "invite", "fed.db", "--out", "i.st")
    arguments = ("ledger", "contribute", "i.st", "--data", "a.csv", "--client", "a", "--out", "a.st")
    refused = command(*arguments, "--features", "random:9,relu,2")
    assert refused.code == 2 and "the features here are not the federation's" in refused.err
    assert not (tmp_path / "a.st").exists()
    assert command(*arguments).code == 0


def test_numbers_at_the_command_line(command: Command, tmp_path: Path) -> None:
    wards(tmp_path)
    command("ledger", "create", "fed.db", "--like", "a.csv")
    command("ledger", "invite", "fed.db", "--out", "i.st")
    for name, number in (("a", "7"), ("b", "7")):
        site = ("--data", f"{name}.csv", "--client", "ward", "--number", number)
        made = command("ledger", "contribute", "i.st", *site, "--out", f"{name}.st")
        assert made.code == 0, made.err
    assert command("ledger", "add", "fed.db", "a.st").code == 0
    refused = command("ledger", "add", "fed.db", "b.st")
    assert refused.code == 2 and "not newer: its number is 7" in refused.out
    assert command("ledger", "readmit", "fed.db", "ward").code == 0
    assert "ward: replaced" in command("ledger", "add", "fed.db", "b.st").out


def test_keys_at_the_command_line(command: Command, tmp_path: Path) -> None:
    wards(tmp_path)
    (tmp_path / "keys").mkdir()
    pairs = {name: key_pair(tmp_path, name) for name in "abx"}
    for name in "ab":
        pairs[name][1].rename(tmp_path / "keys" / f"{name}.pub")
    (tmp_path / "empty").mkdir()
    assert command("ledger", "create", "fed.db", "--like", "a.csv", "--keys", "empty").code == 2
    assert command("ledger", "create", "fed.db", "--like", "a.csv", "--keys", "keys").code == 0
    command("ledger", "invite", "fed.db", "--out", "i.st")
    for name, key in (("a", "a"), ("b", "x"), ("c", "x")):
        site = ("--data", f"{name}.csv", "--client", name, "--key", key)
        made = command("ledger", "contribute", "i.st", *site, "--out", f"{name}.st")
        assert made.code == 0, made.err
    shown = command("ledger", "add", "fed.db", "a.st", "b.st", "c.st")
    assert shown.code == 2 and "a: added" in shown.out
    assert "b: rejected, it is not signed" in shown.out and "c: rejected, 'c' has no key here" in shown.out
    assert command("ledger", "trust", "fed.db", "c", "x.pub").code == 0
    assert "c: added" in command("ledger", "add", "fed.db", "c.st").out
