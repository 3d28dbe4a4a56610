"""Nothing is opened or imported because a file or a message names it, and what is named here is compared first.

Acts on what strangers wrote happen in `watched`, a process that writes down what is opened, imported and called; all in
one, since it takes seconds to start. Each group of acts is judged by a test of its own.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import sqlite3
import subprocess
import sys
import warnings
import zipfile
from contextlib import closing
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import fedsolve as fs
from fedsolve import codec
from fedsolve.features import maps
from fedsolve.features.elsewhere import Elsewhere
from fedsolve.ledger import entries
from fedsolve.ledger.store import Ledger
from fedsolve.runtime import job as told
from fedsolve.runtime.job import Job
from fedsolve.runtime.sites import FileSite
from fedsolve.study.onnx import to_onnx
from tests.conftest import ROOT, unsealed
from tests.core.tiny import NORMAL, write_onnx

TORCH = find_spec("torch") is not None
ONNX = find_spec("onnx") is not None and find_spec("onnxruntime") is not None
PICTURES = np.random.default_rng(0).integers(0, 256, (6, 8, 8, 3)).astype(np.uint8)
WEIGHTS = "3f" * 16
# What a stranger may call the features, and the identity that goes with it.
PLACES = {
    "onnx:evil.onnx,mean=0/0/0,std=1/1/1": f"onnx; weights {WEIGHTS}; size as it is",
    "torch:evil.pt,mean=0/0/0,std=1/1/1": f"torch; weights {WEIGHTS}; size as it is",
    "hf:someone/model": f"hf; weights {WEIGHTS}; size as it is",
    "hf:evil": f"hf; weights {WEIGHTS}; size as it is",
    "efficientnet-lite0": f"efficientnet-lite0; weights {WEIGHTS}; size as it is",
    "unit+onnx:evil.onnx": f"unit+onnx; weights {WEIGHTS}",
}
STRANGE = ("evil", "antigravity", "onnxruntime", "transformers", "huggingface_hub", "efficientnet", "nowhere")


class Act(NamedTuple):
    """Something to do with what a stranger wrote, and the files below the folder that may be opened for it."""

    name: str
    arguments: dict[str, Any]
    given: tuple[str, ...]


class Seen(NamedTuple):
    """What became of an act, and what it did on the way."""

    act: Act
    outcome: str
    opened: set[str]
    modules: set[str]
    tried: list[str]

    def check(self, *words: str) -> None:
        """It was refused in these words, opened only what was given, and looked for no module that a stranger names."""
        assert self.outcome != "done", self
        assert all(word in self.outcome for word in words), self
        assert self.opened <= set(self.act.given), self
        assert not [name for name in self.modules if name.startswith(STRANGE)], self
        assert not self.tried, self


def watch(folder: Path, acts: list[Act]) -> list[Seen]:
    """Do all acts in one new process whose current folder is that of the files."""
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}", "HF_HOME": str(folder / "hub")}
    environment |= {"FEDSOLVE_CACHE": "", "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(Path(__file__).with_name("watched.py"))],
        input=json.dumps([(act.name, act.arguments) for act in acts]),
        capture_output=True,
        text=True,
        cwd=folder,
        env=environment,
        check=False,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    return [
        Seen(act, line["outcome"], set(line["opened"]), set(line["modules"]), line["tried"])
        for act, line in zip(acts, lines, strict=True)
    ]


def hostile_task(features: str, identity: str, shape: tuple[int, ...] = (3,)) -> str:
    return fs.Task(fs.Classes(2), (8, 8, 3), Elsewhere(features, identity, shape)).to_text()


def metadata(method: str = "afl", settings: str = "{}", task: str = "") -> dict[str, str]:
    plain = fs.Task(fs.Classes(2), (3,)).to_text()
    return {"fedsolve": "2", "method": method, "settings": settings, "owner": "a", "task": task or plain}


TERMS = {
    "fedsolve": "2",
    "made": "terms",
    "method": "afl",
    "settings": "{}",
    "seed": "0",
    "layout": json.dumps([["count", "<i8", []], ["cross", "<f8", [3, 2]], ["triangle", "<f8", [6]]]),
    "ones": "null",
    "bound": "null",
    "task": fs.Task(fs.Classes(2), (3,)).to_text(),
}


# --- what strangers wrote ---


def program(marker: Path) -> bytes:
    """A TorchScript program that gives three features of a picture, and writes to `marker` whenever it is run."""
    import torch

    file = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of TorchScript, which is still common
        module = torch.jit.ScriptModule()
        module.define(f"def forward(self, x):\n    torch.save(x, {str(marker)!r})\n    return x.mean([2, 3])\n")
        torch.jit.save(module, file)
    return file.getvalue()


def write_polyglot(path: Path, texts: dict[str, str], archive: bytes) -> None:
    """A model whose bytes are also a program: archives are read from their end, safetensors from the start."""

    def behind(start: int) -> bytes:
        """The archive with offsets that count from `start` bytes before it."""
        file = io.BytesIO(b"\0" * start)
        with zipfile.ZipFile(io.BytesIO(archive)) as old, zipfile.ZipFile(file, "a") as new:
            for entry in old.infolist():
                new.writestr(zipfile.ZipInfo(entry.filename), old.read(entry))
        return file.getvalue()[start:]

    size = len(behind(0))
    arrays: dict[str, Any] = {"weight": np.ones((3, 2)), "zip": np.zeros(size, dtype=np.uint8)}
    arrays["zip"] = np.frombuffer(behind(len(codec.encode(arrays, texts)) - size), dtype=np.uint8)
    path.write_bytes(codec.encode(arrays, texts))


def polyglots(place: Path) -> list[Act]:
    """A model and an invitation that are programs and name themselves as their features."""
    if not TORCH:
        return []
    archive, model, invitation = program(place / "marker"), "evil-model.safetensors", "evil-invitation.safetensors"
    names = {name: f"torch:{name},mean=0/0/0,std=1/1/1" for name in (model, invitation)}
    tasks = {name: hostile_task(spec, f"torch; weights {WEIGHTS}") for name, spec in names.items()}
    write_polyglot(place / model, metadata(task=tasks[model]), archive)
    write_polyglot(place / invitation, {**TERMS, "task": tasks[invitation]}, archive)
    data = {"data": "p.npz"}
    return [
        Act("load", {"path": model}, (model,)),
        Act("predict", {"path": model, **data}, (model,)),
        Act("export", {"path": model}, (model,)),
        Act("estimator", {"path": model, "features": names[model]}, (model,)),
        Act("contribute", {"path": invitation, **data}, (invitation,)),
        Act("command", {"words": ["predict", model, "--data", "p.npz"]}, (model,)),
        # Also where a user was talked into naming it, since its weights are not those of the identity.
        Act("predict", {"path": model, **data, "features": names[model]}, (model,)),
        Act("contribute", {"path": invitation, **data, "features": names[invitation]}, (invitation,)),
    ]


HOSTILE_MODELS = [
    metadata("fedavg", '{"model": "antigravity:x"}'),
    metadata("local", '{"model": "evil:net"}'),
    metadata("ditto", '{"model": "nowhere.at_all:net"}'),
    metadata("os:system"),
    metadata("evil:Method"),
    *[metadata(task=hostile_task(spec, identity)) for spec, identity in PLACES.items()],
    metadata(task=hostile_task("torch:evil.pt", "identity", (8, 8, 3))),
    metadata(task=hostile_task("unit", "unit", (10**12,))),
    metadata(task=hostile_task("random:999999999", "random:999999999,relu,0", (999999999,))),
    metadata(task=hostile_task("random:999999999+random:3", "random:999999999,relu,0+random:3,relu,0")),
    metadata(task=fs.Task(fs.Classes(2), (10**11,)).to_text()),
    metadata("apfl", '{"d_primary": 999999999}'),
    metadata("fedacnnl", '{"network": "mlp:9999999"}'),
    metadata("fedavg", '{"model": "mlp:9999999,9999999"}'),
    metadata("fedavg", json.dumps({"model": "mlp:" + ",".join(["1"] * 100_000)})),
]
LAYERS = {"layer/0/weight": np.ones((3, 2)), "layer/1/weight": np.ones((3, 2)), "seeds": np.array([1, 2])}


def models(place: Path) -> list[Act]:
    """Models of both formats."""
    old = {"fedsolve": "1", "method": "afl", "settings": "{}", "owner": "a", "classes": "2", "class_names": "[]"}
    old |= {"feature_names": "[]", "inputs": "[8, 8, 3]", "features": "identity", "space": "identity of (8, 8, 3)"}
    olds = [old | {"features": spec, "space": maps.in_words(words, (8, 8, 3))} for spec, words in PLACES.items()]
    olds.append(old | {"method": "fedavg", "settings": '{"model": "antigravity:x"}'})
    acts = []
    for number, texts in enumerate([*HOSTILE_MODELS, *olds]):
        path = f"model-{number}.safetensors"
        arrays = {"weight": np.ones((3, 2))} | (LAYERS if texts["method"] in ("apfl", "fedacnnl") else {})
        codec.write_file(place / path, arrays, texts)
        acts.append(Act("load", {"path": path}, (path,)))
    return acts


def results(place: Path) -> list[Act]:
    """Results whose models, settings and method name things."""
    task = fs.Task(fs.Classes(2), (3,))
    model = fs.Model(fs.AFL(ridge=0.0, intercept=False), task, {"weight": np.ones((3, 2))}, "client-00")
    federation = fs.Table.make("t", np.eye(3)[np.arange(6) % 3], np.arange(6) % 2).split("iid", clients=2, test=0)
    result = replace(
        fs.run(fs.AFL(ridge=0.0, intercept=False), federation), models={"client-00": model, "client-01": model}
    )
    for name, texts in {"r": metadata("fedavg", '{"model": "antigravity:x"}'), "s": metadata("os:system")}.items():
        result.save(place / name)
        codec.write_file(place / name / "models" / "client-00.safetensors", model.arrays, texts)
    page = unsealed(place / "s" / "result.json")
    settings = {"method": "evil:Method", "data": "evil.csv", "features": "torch:evil.pt"}
    (place / "s" / "result.json").write_text(json.dumps(page | {"method": "evil:Method", "settings": settings}))
    files = ("result.json", "state.safetensors", "models/global.safetensors", "models/client-00.safetensors")
    acts = [Act("result", {"folder": name}, tuple(f"{name}/{file}" for file in files)) for name in ("r", "s")]
    words = ["run", "--config", "s/result.json", "--method", "afl"]
    return [*acts, Act("command", {"words": words}, ("s/result.json",))]


HOSTILE_TERMS: list[dict[str, str]] = [
    {"method": "fedavg", "settings": '{"model": "antigravity:x", "rounds": 1}'},
    {"method": "fedavg", "settings": '{"rounds": 1}'},
    {"method": "fedacnnl", "settings": "{}"},
    {"method": "pfedacnnl", "settings": '{"network": "lr", "groups": 1}'},
    {"method": "local"},
    {"layout": json.dumps([["weights", "<f8", [3, 2]]])},
    {"method": "os:system"},
    {"method": "evil:Method"},
]


def invitations(place: Path) -> list[Act]:
    """Invitations and messages of ledgers."""
    acts = []
    tasks = [{"task": hostile_task(spec, identity)} for spec, identity in PLACES.items()]
    for number, change in enumerate([*HOSTILE_TERMS, *tasks]):
        for act, made in (("contribute", {}), ("personal", {"made": "message", "members": ""})):
            path = f"{act}-{number}.safetensors"
            codec.write_file(place / path, {}, TERMS | change | made)
            data = "p.npz" if "task" in change else "d.npz"
            acts.append(Act(act, {"path": path, "data": data}, (path,)))
    return acts


def ledgers(place: Path) -> list[Act]:
    """Ledgers, and a contribution to one that is as it should be."""
    acts = []
    for number, change in enumerate([*HOSTILE_TERMS, {}]):
        path = f"{number}.db"
        Ledger.create(place / path, fs.AFL(ridge=0.0, intercept=False), fs.Task(fs.Classes(2), (3,))).close()
        if change:
            with closing(sqlite3.connect(place / path)) as connection:
                data = bytes(codec.encode({}, TERMS | change))
                connection.execute("UPDATE terms SET data = ?, digest = ?", (data, entries.digest(1, data)))
                connection.commit()
        acts.append(Act("ledger", {"path": path}, ()))
    labels = {"made": "contribution", "client": "a", "space": "torch:evil.pt of (3,)", "method": "evil:Method"}
    codec.write_file(place / "c.safetensors", {"count": np.array(1)}, {"fedsolve": "1", **labels})
    acts[-1] = Act("ledger", {**acts[-1].arguments, "contribution": "c.safetensors"}, ("c.safetensors",))
    return acts


HOSTILE_SETTINGS: list[tuple[dict[str, Any], str]] = [
    ({"method": "evil:Method"}, "--method evil:Method"),
    ({"method": "fedavg", "set": {"model": "evil:net"}}, "--set model=evil:net"),
    ({"features": "torch:evil.pt"}, "--features torch:evil.pt"),
    ({"features": "hf:someone/model"}, "--features hf:someone/model"),
    ({"features": "efficientnet-lite0"}, "--features efficientnet-lite0"),
    ({"data": "evil.csv"}, "--data evil.csv"),
    ({"data": "evil"}, "--data evil"),
    ({"data": "digits:evil.csv"}, "--data digits:evil.csv"),
    ({"data": "hf:someone/data"}, "--data hf:someone/data"),
    ({"data": "evil.csv", "features": "onnx:evil.onnx"}, "--data evil.csv --features onnx:evil.onnx"),
]


def checkpoints(place: Path) -> list[Act]:
    """Checkpoints; the last is met by a user who names another method."""
    acts = []
    for number, (settings, _) in enumerate(HOSTILE_SETTINGS):
        head = {"fedsolve-checkpoint": "2", "settings": json.dumps(settings), "every": "1"}
        folder = f"checkpoint-{number}"
        (place / folder).mkdir()
        codec.write_file(place / folder / "checkpoint.safetensors", {}, head)
        given = (f"{folder}/checkpoint.safetensors",)
        acts.append(Act("command", {"words": ["run", "--resume", "--out", folder]}, given))
    first = acts[0]
    return [*acts, Act("command", {"words": [*first.arguments["words"], "--method", "afl"]}, first.given)]


def jobs(place: Path) -> list[Act]:
    """Jobs that a server sends to a site."""
    plain = fs.Task(fs.Classes(2), (8, 8, 3))
    orders = [Job("afl", features=spec, identity=identity) for spec, identity in PLACES.items()]
    orders += [Job("afl", features=spec) for spec in PLACES]
    orders += [
        Job("afl", features="torch:evil.pt", identity="identity"),
        Job("afl", features="random:999999999", identity="random:999999999,relu,0"),
        Job("afl", features="random:99999999", identity="random:99999999,relu,0"),
        Job("fedavg", {"model": "antigravity:x"}, identity="identity"),
        Job("fedavg", {"model": "evil:net"}, identity="identity"),
        Job("evil:Method", identity="identity"),
        Job("os:system", identity="identity"),
    ]
    acts = []
    for job in orders:
        task = replace(plain, features=Elsewhere(job.features, job.identity, (3,))) if job.method == "afl" else plain
        arguments = {"job": told.to_text(job), "task": task.to_text(), "data": "p.npz"}
        acts.append(Act("answer", arguments, ("p.npz",)))
    return acts


CHAIN = "+random:7,relu,1"


def others(place: Path) -> list[Act]:
    """A model and an invitation as they should be, and a user who names a network with other weights."""
    if not ONNX:
        return []
    write_trained(place)
    write_onnx(place / "other.onnx", seed=1)
    write_onnx(place / "other.pt", seed=2)
    job = Job("afl", features=f"onnx:{place / 'net.onnx'},{NORMAL}{CHAIN}").identified()
    task = fs.Task(fs.Classes(2), (8, 8, 3), Elsewhere(job.features, job.identity, (7,)))
    model, invitation, data = {"path": "m.safetensors"}, {"path": "i.safetensors"}, {"data": "p.npz"}
    other = {"features": f"onnx:other.onnx,{NORMAL}{CHAIN}"}
    given = ("m.safetensors", "i.safetensors", "other.onnx")
    run = tuple(f"run/{name}" for name in ("result.json", "state.safetensors", "models/global.safetensors"))
    return [
        Act("predict", model | data | other, given),
        Act("export", model | other, given),
        Act("estimator", model | other, given),
        Act("result", {"folder": "run"} | other, (*run, "other.onnx")),
        Act("contribute", invitation | data | other, given),
        Act("predict", model | data | {"features": f"torch:other.pt,{NORMAL}{CHAIN}"}, ("m.safetensors", "other.pt")),
        Act("predict", model | data | {"features": f"hf:evil{CHAIN}"}, ("m.safetensors", "evil/config.json")),
        Act("predict", model | data | {"features": f"onnx:net.onnx,{NORMAL}"}, ("m.safetensors", "net.onnx")),
        Act("answer", {"job": told.to_text(job), "task": task.to_text()} | data | other, ("p.npz", "other.onnx")),
    ]


def write_trained(place: Path) -> None:
    """A model of pictures, its run, and an invitation for its features, whose network lies where they say."""
    features = maps.parse(f"onnx:{write_onnx(place / 'net.onnx', opset=17)},{NORMAL}{CHAIN}")
    table = fs.Table.make("pictures", PICTURES, np.arange(6) % 2).with_features(features)
    result = fs.run(fs.AFL(ridge=1.0, intercept=False), table.split("iid", clients=2, test=0))
    result.save(place / "run")
    assert result.shared is not None
    result.shared.save(place / "m.safetensors")
    with Ledger.create(place / "fed.db", fs.AFL(ridge=0.0, intercept=False), table.task) as ledger:
        ledger.terms.save(place / "i.safetensors")


GROUPS = {each.__name__: each for each in (others, polyglots, models, results, invitations, ledgers, checkpoints, jobs)}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what strangers name: each would leave a mark if it were opened."""
    folder = tmp_path_factory.mktemp("place")
    (folder / "evil.py").write_text("raise SystemExit('imported')\n")
    (folder / "evil.csv").write_text("a,label\n1,x\n2,y\n")
    for name in ("evil.onnx", "evil.pt"):
        (folder / name).write_bytes(b"evil")
    (folder / "evil").mkdir()
    (folder / "evil" / "config.json").write_text("{}")
    np.savez(folder / "p.npz", x=PICTURES, y=np.arange(6) % 2)
    np.savez(folder / "d.npz", x=np.eye(3)[np.arange(6) % 3], y=np.arange(6) % 2)
    return folder


@pytest.fixture(scope="module")
def seen(place: Path) -> dict[str, list[Seen]]:
    """What was seen of each group of acts."""
    acts = {name: group(place) for name, group in GROUPS.items()}
    lines = iter(watch(place, [act for group in acts.values() for act in group]))
    return {name: [next(lines) for _ in group] for name, group in acts.items()}


@pytest.mark.skipif(not TORCH, reason="torch is not installed")
def test_a_file_that_is_a_program_and_names_itself_as_its_features_does_not_run(
    place: Path, seen: dict[str, list[Seen]]
) -> None:
    """0.1.0 opened and tried the features that a model or an invitation names before it compared their identity."""
    for each in seen["polyglots"]:
        each.check()
    assert not (place / "marker").exists()
    maps.parse(f"torch:{place / 'evil-model.safetensors'},mean=0/0/0,std=1/1/1")  # it is a program: opened, it runs
    assert (place / "marker").exists()


def test_no_model_of_a_stranger_opens_or_imports_what_it_names(seen: dict[str, list[Seen]]) -> None:
    """0.1.0 imported any module, opened any path or hub name, and made networks of any size."""
    for each in seen["models"]:
        named = each.act.arguments["path"] in each.outcome
        assert named or "say what it is here with --features" in each.outcome, each
        each.check()


def test_no_result_of_a_stranger_opens_or_imports_what_it_names(seen: dict[str, list[Seen]]) -> None:
    one, two, again = seen["results"]
    one.check("its network is 'antigravity:x', which is not imported because a file or a message names it")
    two.check("unknown method 'os:system'")
    again.check("give it here as well: --data evil.csv --features torch:evil.pt\n")


def test_no_invitation_or_message_of_a_stranger_opens_or_imports_what_it_names(seen: dict[str, list[Seen]]) -> None:
    """0.1.0 opened what invitations name, and took methods that no ledger can hold."""
    for each in seen["invitations"]:
        each.check(each.act.arguments["path"], "cannot be used: ")


def test_no_ledger_or_contribution_of_a_stranger_opens_or_imports_what_it_names(seen: dict[str, list[Seen]]) -> None:
    *terms, contribution = seen["ledgers"]
    for each in terms:
        each.check(each.act.arguments["path"], "cannot be used: ")
    contribution.check("its features are not the federation's")


def test_no_checkpoint_of_a_stranger_opens_or_imports_what_it_names(seen: dict[str, list[Seen]]) -> None:
    """Checkpoints knew data, features and networks, and only a method of one's own had to be given again."""
    *refusals, other = seen["checkpoints"]
    for each, (_, words) in zip(refusals, HOSTILE_SETTINGS, strict=True):
        each.check(f"give it here as well: {words}\n")
    other.check("method was 'evil:Method' and is 'afl'")  # which is not imported to be compared


def test_no_job_of_a_server_makes_a_site_open_or_import_what_it_names(seen: dict[str, list[Seen]]) -> None:
    """0.1.0 opened the features, and imported the network, that the server names."""
    for each in seen["jobs"]:
        each.check()


@pytest.mark.skipif(not ONNX, reason="onnx or onnxruntime is not installed")
def test_a_network_with_other_weights_is_read_for_its_digest_and_not_opened(seen: dict[str, list[Seen]]) -> None:
    """Neither onnxruntime nor torch nor transformers is even loaded: 0.1.0 opened and tried it before it compared."""
    for each in seen["others"]:
        each.check("the features here are not the federation's")
        assert not [name for name in each.modules if name.startswith("torch")]


# --- what is named here ---


@pytest.fixture
def trained(tmp_path: Path) -> Path:
    """A folder with pictures, a model of them and its network."""
    if not ONNX:
        pytest.skip("onnx or onnxruntime is not installed")
    np.savez(tmp_path / "p.npz", x=PICTURES, y=np.arange(6) % 2)
    write_trained(tmp_path)
    return tmp_path


def test_a_network_with_the_same_weights_works_wherever_it_lies(trained: Path) -> None:
    whole = fs.load_model(trained / "m.safetensors", features=f"onnx:{trained / 'net.onnx'},{NORMAL}{CHAIN}")
    wanted = whole.scores(PICTURES)
    (trained / "here").mkdir()
    shutil.move(trained / "net.onnx", trained / "here" / "moved.onnx")
    here = f"onnx:{trained / 'here' / 'moved.onnx'},{NORMAL}{CHAIN}"
    moved = fs.load_model(trained / "m.safetensors", features=here)
    np.testing.assert_array_equal(moved.scores(PICTURES), wanted)
    result = fs.Result.load(trained / "run", features=here)
    np.testing.assert_array_equal(result.models["client-00"].scores(PICTURES).shape, wanted.shape)
    unopened = fs.Result.load(trained / "run")  # figures and arrays need no network
    assert unopened.shared is not None and result.shared is not None
    assert unopened.shared.arrays.keys() == result.shared.arrays.keys()
    with pytest.raises(fs.DataError, match="say what it is here with --features"):
        unopened.shared.predict(PICTURES)
    with pytest.raises(fs.DataError, match="say what it is here with --features"):
        to_onnx(trained / "m.safetensors", trained / "m.onnx")
    for other in (here.replace("+", ",size=20+"), here.replace("relu,1", "relu,2")):
        with pytest.raises(fs.DataError, match="the features here are not the federation's"):
            fs.load_model(trained / "m.safetensors", features=other)


def test_a_site_opens_the_network_that_it_names_itself_if_it_is_the_jobs(trained: Path) -> None:
    spec = f"onnx:{trained / 'net.onnx'},{NORMAL}"
    job = Job("afl", features=spec).identified()
    shutil.copy(trained / "net.onnx", trained / "copy.onnx")
    site = FileSite("a", str(trained / "p.npz"), trained / "a", features=f"onnx:{trained / 'copy.onnx'},{NORMAL}")
    assert site.describe(job).task.features.identity == job.identity
    with pytest.raises(fs.DataError, match=r"not opened because .* FEATURES in its site\.env"):
        replace(site, features="").describe(job)
    wrong = replace(site, features=f"onnx:{write_onnx(trained / 'wrong.onnx', seed=1)},{NORMAL}")
    with pytest.raises(fs.DataError, match=r"site 'a' has other features than the rest: weights \w+.* here, weights"):
        told.agree({"a": wrong.describe(job)}, job)
    with pytest.raises(fs.DataError, match=r"the features here are not the federation's: weights \w+.* here, weights"):
        wrong.client(job, fs.Task.from_text(told.shared_text(site.describe(job).task, job)))
    assert replace(site, features="").describe(Job("afl", features="unit").identified()).task.shape == (192,)


OWN = """
import torch


def net(shape, classes):
    return torch.nn.Linear(shape[-1], classes)
"""


def test_a_network_of_ones_own_is_imported_where_it_is_given_and_only_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    (tmp_path / "netofmine.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    method = fs.FedAvg(model="netofmine:net", rounds=1, epochs=1)
    result = fs.run(method, fs.load("wards").split("by-client"))
    assert result.shared is not None
    result.save("run")
    path = "run/models/global.safetensors"
    told = {"model": "netofmine:net"}
    assert fs.load_model(path, **told).owner == "global"  # type: ignore[arg-type]
    assert fs.Result.load("run", **told).shared is not None  # type: ignore[arg-type]
    for given in ("", "netofmine:other", "os:system"):
        with pytest.raises(fs.DataError, match="its network is 'netofmine:net', which is not imported because a file"):
            fs.load_model(path, model=given)
    plain = fs.run(fs.AFL(ridge=0.0, intercept=False), fs.load("wards").split("by-client"))
    assert plain.shared is not None
    plain.shared.save("plain.safetensors")
    with pytest.raises(fs.DataError, match="takes no network of a user's own"):
        fs.load_model("plain.safetensors", model="netofmine:net")
    job = Job("fedavg", {"model": "netofmine:net"})
    assert FileSite("a", "wards", tmp_path, model="netofmine:net").method(job).name == "fedavg"
    assert FileSite("a", "wards", tmp_path, model="netofmine:net").method(Job("afl")).name == "afl"
    with pytest.raises(fs.DataError, match=r"MODEL in a site's site\.env"):
        FileSite("a", "wards", tmp_path).method(job)
