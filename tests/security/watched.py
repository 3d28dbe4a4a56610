"""Acts on files and messages of strangers, in a process that sees every open, import, connection and program.

Audit hooks cannot be taken out again, hence the process. Acts come as JSON on standard input, one line each goes out:
what became of it, the files it opened below the current folder, the modules it looked for, and anything else it tried.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from importlib.machinery import ModuleSpec
from io import StringIO
from pathlib import Path
from types import ModuleType
from typing import Any

from fedsolve import cli, codec
from fedsolve.data.task import Task
from fedsolve.errors import FedsolveError
from fedsolve.ledger.contribution import load_contribution
from fedsolve.ledger.site import contribute, personal
from fedsolve.ledger.store import Ledger
from fedsolve.model import load_model
from fedsolve.result import Result
from fedsolve.runtime.client import Request
from fedsolve.runtime.job import Job, from_text
from fedsolve.runtime.sites import FileSite, respond
from fedsolve.study.estimator import estimator
from fedsolve.study.onnx import to_onnx
from fedsolve.study.predict import predict_file

FORBIDDEN = ("socket.connect", "socket.getaddrinfo", "subprocess.Popen", "os.system", "os.exec", "os.posix_spawn")


class Finder:
    """Writes down which modules are looked for, and finds none."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Python asks here first."""
        self.names.append(name)
        return None


def command(*words: str) -> None:
    """A command of fedsolve; its one sentence of refusal is raised."""
    output = StringIO()
    sys.argv = ["fedsolve", *words]
    with redirect_stdout(output), redirect_stderr(output):
        try:
            cli.main()
        except SystemExit as stop:
            if stop.code:
                raise FedsolveError(output.getvalue()) from None


def load(path: str, **told: str) -> None:
    """A model, and a prediction for what it says its inputs are."""
    model = load_model(path, **told)  # type: ignore[arg-type]
    import numpy as np

    model.scores(np.ones((2, *(8 if side < 0 else side for side in model.task.inputs))))


def load_result(folder: str, **told: str) -> None:
    """A result, and one of its models."""
    result = Result.load(folder, **told)  # type: ignore[arg-type]
    for name in result.models:
        result.models[name]


def open_ledger(path: str, contribution: str = "") -> None:
    """A ledger, a contribution to it, and its solution."""
    with Ledger(Path(path)) as ledger:
        if contribution:
            load_contribution(Path(contribution), ledger.terms)
        ledger.solve()


def answer(job: str, task: str, data: str, features: str = "", model: str = "") -> None:
    """What a site does with a job: it describes itself, and answers the first request."""
    site = FileSite("ward-a", data, Path("state"), features=features, model=model)
    told: Job = from_text(Job, job)
    common = Task.from_text(task)
    request = Request("update", 1, 0, common.described, {}).write()
    try:
        site.describe(told)
    finally:
        respond(site, told, common, request, "run")


ACTS: Mapping[str, Callable[..., object]] = {
    "load": load,
    "predict": lambda path, data, **told: predict_file(Path(path), Path(data), **told),
    "export": lambda path, **told: to_onnx(path, "out.onnx", **told),
    "estimator": lambda path, **told: estimator(path, **told),
    "result": load_result,
    "contribute": lambda path, data, **told: contribute(Path(path), data, "a", Path("c.out"), **told),
    "personal": lambda path, data, **told: personal(Path(path), data, "a", **told),
    "ledger": open_ledger,
    "answer": answer,
    "command": lambda words: command(*words),
    "arrays": lambda path: codec.read_file(Path(path)),
}


def main() -> None:
    """Do what standard input says."""
    here, finder = Path.cwd(), Finder()
    opened: list[str] = []
    tried: list[str] = []

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" and isinstance(arguments[0], (str, bytes)):
            path = Path(os.path.abspath(os.fsdecode(arguments[0])))
            if path.is_relative_to(here):
                opened.append(str(path.relative_to(here)))
        elif event.startswith(FORBIDDEN):
            tried.append(event)

    sys.meta_path.insert(0, finder)
    sys.addaudithook(hook)
    for act, arguments in json.loads(sys.stdin.read()):
        for each in (opened, tried, finder.names):
            each.clear()
        try:
            ACTS[act](**arguments)
            outcome = "done"
        except FedsolveError as error:
            outcome = str(error)
        line = {"outcome": outcome, "opened": opened, "modules": finder.names, "tried": tried}
        sys.__stdout__.write(json.dumps(line) + "\n")  # type: ignore[union-attr]


if __name__ == "__main__":
    main()
