"""Both apps on one machine: in this process (`inline.py`), or on Flower's simulation engine, which is Ray.

Ray takes 15 to 30 s to start, and its workers load everything once more; clients then have all cores. Which of both is
faster is a matter of how much clients do: `engine_for` says where the border lies, and why there.

Ray is started with `flwr.simulation.run_simulation`. Flower calls that function deprecated in favour of the command
`flwr run`, which was tried with flwr 1.41.0 and a SuperLink of our own on a free local port. Four nodes took 13.9 s
instead of 9.8 s (one run each); both apps had to lie in files of a Flower app and ran in processes of the SuperLink,
where `load`, `progress` and an open ledger behind `keeper` do not reach them; the port took runs without credentials;
and the SuperLink stayed behind when the caller was killed. The function below both, `_run_simulation`, takes these
apps in the same time, but is private; so the public one stays, and of Flower's log only its notice is left out.
"""

from __future__ import annotations

import logging
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from flwr.app import Context
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from fedsolve import codec, parameters
from fedsolve.data.federation import Federation
from fedsolve.data.task import Task
from fedsolve.errors import DataError, FedsolveError, ParameterError
from fedsolve.method import Method
from fedsolve.model import Model
from fedsolve.progress import Progress
from fedsolve.result import Result
from fedsolve.runtime.drive import OnRound, Outcome
from fedsolve.runtime.flower import inline
from fedsolve.runtime.flower.client import make_client_app
from fedsolve.runtime.flower.server import make_server_app, result_of, serve
from fedsolve.runtime.inbox import Keeper
from fedsolve.runtime.job import Job, Rules
from fedsolve.runtime.sites import KEYS, Host, SplitSite
from fedsolve.runtime.turnout import Participation
from fedsolve.threads import cores

if TYPE_CHECKING:
    from fedsolve.privacy.keys import Peer

# Bytes of training inputs, times how often they are gone through. One core takes 10 s (sums of 768 features) to 30 s (a
# small network) for each 10^9 of them: from here on, two cores save the time that Ray takes to start.
LARGE = 2_000_000_000

Engine = Callable[[ServerApp, ClientApp, int], None]  # runs two apps with so many nodes


def simulate(
    job: Job,
    load: Callable[[], Federation],
    *,
    participation: Participation = 1.0,
    evaluate_every: int = 1,
    progress: Progress | None = None,
    on_round: OnRound | None = None,
    keeper: Keeper | None = None,
    engine: str = "",
) -> Result:
    """A method on a federation through Flower's apps; the `engine` is one of ENGINES, by default as `engine_for` says.

    `load` makes the federation; workers call it for each message, so one that takes time should keep what it made.
    `on_round` is told of each round. The `keeper` is given each client's reply or, of a secure sum, the sum. The
    settings of the result say which engine.
    """
    started = time.perf_counter()
    federation = load()
    engine = engine or engine_for(job.create(), federation)
    names = tuple(sorted(federation.clients))
    rules = Rules(names, len(names), 600.0, 3600.0, participation, evaluate_every)
    peers: dict[str, Peer] = {}
    outcomes: list[tuple[Outcome, Task, Method]] = []
    errors: list[FedsolveError] = []

    def act(grid: Grid, context: Context) -> None:
        try:
            keeping = (lambda method, task: nullcontext(keeper)) if keeper else None
            outcomes.append(
                serve(grid, job, rules, lambda line: None, progress, on_round=on_round, keeping=keeping, peers=peers)
            )
        except FedsolveError as error:
            errors.append(error)

    with tempfile.TemporaryDirectory(prefix="fedsolve-") as folder:
        state = Path(folder)
        if job.quorum:
            peers |= _peers(state / KEYS, names)
        ENGINES[engine](make_server_app(act), make_client_app(partial(split_site, load, state)), len(names))
        if errors:
            raise errors[0]
        if not outcomes:
            raise DataError("Flower's simulation engine ended before the run did; its log says why")
        outcome, task, method = outcomes[0]
        models = {}
        for name in outcome.clients:
            arrays, _ = codec.read_file(state / "models" / f"{name}.safetensors")
            models[name] = Model(method, task, arrays, name)
    for name, reason in outcome.failed.items():
        raise DataError(f"client {name!r}: {reason}")
    result = result_of(outcome, task, method, job, rules, time.perf_counter() - started)
    data = {"name": federation.name, "fingerprint": federation.fingerprint}
    settings = {**result.settings, "runtime": f"{result.settings['runtime']}:{engine}"}
    return replace(result, models=models, data=data, settings=settings)


def engine_for(method: Method, federation: Federation) -> str:
    """The engine that is likely to be done first: ray for what is LARGE, where it is installed and has cores."""
    inputs = sum(np.size(client.train.inputs) for client in federation.clients.values())
    passes = method.rounds * int(parameters.values(method).get("epochs", 1))
    large = inputs * np.dtype(np.float64).itemsize * passes >= LARGE
    return "ray" if large and cores() > 1 and find_spec("ray") is not None else "inline"


def _peers(folder: Path, names: Sequence[str]) -> dict[str, Peer]:
    """New keys of clients, in files that their nodes read."""
    from fedsolve.privacy import credentials  # needs a package that not everybody has

    peers = {name: credentials.made(folder / f"{name}.key").public for name in names}
    credentials.write_peers(folder / credentials.PEERS, peers)
    return peers


def split_site(load: Callable[[], Federation], state: Path, context: Context) -> Host:
    """The site of a simulated node: the client of that number in a federation that every process makes for itself."""
    federation = load()
    name = sorted(federation.clients)[int(context.node_config["partition-id"])]
    return SplitSite(name, federation, state)


def _ray(server: ServerApp, client: ClientApp, nodes: int) -> None:
    if find_spec("ray") is None:
        raise ParameterError("--runtime flower:ray needs Ray: pip install 'fedsolve[flower]'")
    from flwr.simulation import run_simulation

    quiet = {"include_dashboard": False, "logging_level": "error", "log_to_driver": False}
    config: dict[str, Any] = {
        "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
        "init_args": {"num_cpus": min(cores(), nodes), **quiet},
    }
    with without_notice():
        run_simulation(server, client, nodes, backend_config=config)


ENGINES: dict[str, Engine] = {"inline": inline.engine, "ray": _ray}


@contextmanager
def without_notice() -> Iterator[None]:
    """Inside, Flower does not say that `run_simulation` is deprecated; whatever else it says is heard."""

    def other(record: logging.LogRecord) -> bool:
        text = record.getMessage()
        return not (text.startswith("DEPRECATED FEATURE") and "`run_simulation`" in text)

    log = logging.getLogger("flwr")
    log.addFilter(other)
    try:
        yield
    finally:
        log.removeFilter(other)
