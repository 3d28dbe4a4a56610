"""The server's side: `serve` is a whole run over a grid, `deployed` one with its settings and result in files."""

from __future__ import annotations

import json
import logging
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedsolve import disk, parameters
from fedsolve.data.target import target_words
from fedsolve.data.task import Task
from fedsolve.errors import FedsolveError, ParameterError, plain
from fedsolve.features import fitting, maps
from fedsolve.method import Method
from fedsolve.progress import Progress
from fedsolve.result import Result
from fedsolve.runtime.drive import OnRound, Outcome, drive, together
from fedsolve.runtime.fitting import Fitting
from fedsolve.runtime.flower.counting import Counted
from fedsolve.runtime.flower.meeting import Opening, Say, meet
from fedsolve.runtime.flower.transport import FlowerTransport
from fedsolve.runtime.gather import Secure
from fedsolve.runtime.inbox import Keeper, SumWitness
from fedsolve.runtime.job import Job, Rules, agreed
from fedsolve.runtime.live import FILE as LIVE
from fedsolve.runtime.live import Live

if TYPE_CHECKING:
    from fedsolve.privacy.keys import Peer

Keeping = Callable[[Method, Task], AbstractContextManager[Keeper]]  # who keeps what comes in such a run

P = ParamSpec("P")
_log = logging.getLogger("flwr")  # Flower streams what is said here to whoever started the run


def make_server_app(act: Callable[[Grid, Context], None]) -> ServerApp:
    """The server app; `act` is what it does."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        act(grid, context)

    return app


def serve(
    grid: Grid,
    job: Job,
    rules: Rules,
    say: Say,
    progress: Progress | None = None,
    *,
    on_round: OnRound | None = None,
    scratch: Path | None = None,
    keeping: Keeping | None = None,
    peers: Mapping[str, Peer] | None = None,
    live: Live | None = None,
) -> tuple[Outcome, Task, Method]:
    """The whole server side: meet the sites, agree on the task, run the method on whoever stays.

    `on_round` is told of each round, and `live` how all of it goes. Early answers wait below `scratch`; without it, and
    under a secure sum, there are none. `keeping` says who keeps each reply, or their sum. `peers` are the sites' public
    keys for secure sums, where the job asks for them.
    """
    noise = job.noisy()
    if noise is not None:
        noise.check_shared(job.quorum)
    if noise is not None and keeping:
        raise ParameterError(
            "nothing is kept of noisy replies, which are no sums over samples: leave out one of the two"
        )

    def gathering(transport: FlowerTransport, on_sum: SumWitness | None = None) -> Secure | None:
        return Secure(job.quorum, peers=peers or {}, terms=transport.terms, on_sum=on_sum) if job.quorum else None

    with ExitStack() as stack:
        method, opening = job.create(), None
        fit = Fitting(job.features) if fitting.unfitted(job.features) else None
        first = _fit_job(job, fit) if fit else job
        first = first.identified()
        if scratch is not None and fit is None and not job.quorum and not job.noise:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix=".fedsolve-", dir=scratch))
            opening = Opening.of(method, first, rules, Path(folder))
        nodes, descriptions, early, absent = meet(grid, first, rules, say, opening)
        expected = len(rules.expected or nodes)
        least = min(rules.min_clients, expected)
        task, odd = agreed(descriptions, first, max(least, expected // 2 + 1))
        left_out = {name: "it was left out on purpose" for name in rules.exclude}
        left_out |= {name: plain(reason) for name, reason in odd.items()}
        for name, reason in sorted(left_out.items()):
            say(f"left out: {name}: {reason}")
        if live:
            live.met(nodes, descriptions, {**absent, **left_out})
        nodes = {name: node for name, node in nodes.items() if name not in left_out}
        samples = sum(site.samples for name, site in descriptions.items() if name not in left_out)
        number = len(descriptions) - len(odd)
        say(f"{number} sites agree: {samples} samples, {target_words(task.target)}, features {task.described}")
        if method.rounds > 1:
            say(f"at most {method.rounds} rounds; each starts a new process at every site, which takes seconds")
        if fit:
            say(f"{fit.rounds} rounds more fit {fit.features}")
            if job.quorum and fit.needs_words:
                told = {name: descriptions[name].words for name in nodes if name in descriptions}
                fit = fit.with_words(told, task)
                first = _fit_job(job, fit).identified()
            way = FlowerTransport(grid, nodes, first, task, rules.timeout)
            fitted = _fitted(fit, task, way, gathering(way), job, least, say, progress)
            job = replace(job, features=fitted)
            task = replace(task, features=maps.parse(fitted))
        job = job.identified()
        keeper = stack.enter_context(keeping(method, task)) if keeping else None
        transport = FlowerTransport(grid, nodes, job, task, rules.timeout, early)
        outcome = drive(
            method,
            task,
            transport,
            seed=job.seed,
            participation=rules.participation,
            tolerate=True,
            min_clients=least,
            progress=progress,
            on_round=together(on_round, live.round_over if live else None),
            evaluate_every=rules.evaluate_every or method.rounds,
            on_reply=keeper.keep if keeper and not job.quorum else None,
            gathering=gathering(transport, keeper.add_cohort if keeper else None),
            noise=noise,
        )
        for name, reason in sorted(outcome.failed.items()):
            say(f"left out: {name}: {reason}")
        if live:
            live.leave_out(outcome.failed)
    return replace(outcome, failed={**absent, **left_out, **outcome.failed}), task, method


def _fit_job(job: Job, fit: Fitting) -> Job:
    """The job of fitting a map, before the method's own; noise is for the method's sums."""
    return replace(job, method=fit.name, set=parameters.values(fit), features="identity", noise={})


def _fitted(
    fit: Fitting,
    task: Task,
    transport: FlowerTransport,
    gathering: Secure | None,
    job: Job,
    least: int,
    say: Say,
    progress: Progress | None,
) -> str:
    """The specification of the features with the map in it that the sites fitted."""
    outcome = drive(
        fit,
        task,
        transport,
        seed=job.seed,
        tolerate=True,
        min_clients=least,
        progress=progress,
        evaluate=False,
        on_reply=None if gathering else lambda client, reply: fit.look(reply, task),
        gathering=gathering,
    )
    for name, reason in sorted(outcome.failed.items()):
        say(f"left out while features were fitted: {name}: {reason}")
    return fit.fitted(outcome.state, task)


def deployed(keeps: Callable[[Mapping[str, Any], Job], Keeping | None], grid: Grid, context: Context) -> None:
    """A run of a deployment: settings come as texts, the result goes to a folder, its end is told in a small file.

    `keeps` says who keeps replies, or their sum, under such settings.
    """
    config = context.run_config
    status = Path(str(config["status"]))
    try:
        job = Job(**json.loads(str(config["job"])))
        rules = Rules(**json.loads(str(config["rules"])))
        started = time.perf_counter()
        out = Path(str(config["out"]))
        disk.private_folder(out.parent)
        keeping = keeps(config, job)
        live = Live(
            status.with_name(LIVE), str(context.run_id), {key.strip(): name for name, key in rules.keys.items()}
        )
        counted = Counted(grid, live.write)
        live.watch(counted.traffic, counted.keys)
        say, progress = _both(_log.info, live.say), _both(_reporter(), live.progress)
        outcome, task, method = serve(
            counted, job, rules, say, progress, scratch=status.parent, keeping=keeping, peers=_peers(config, job),
            live=live,
        )  # fmt: skip
        live.progress("writing the result", 0, 1)
        result_of(outcome, task, method, job, rules, time.perf_counter() - started).save(out)
        end = {"out": str(out)}
    except FedsolveError as error:
        _log.error("fedsolve: %s", error)
        end = {"error": str(error)}
    except (OSError, ArithmeticError) as error:
        end = {"error": f"{type(error).__name__}: {error}"}
    disk.write_bytes(status, json.dumps(end).encode())


def _peers(config: Mapping[str, Any], job: Job) -> dict[str, Peer] | None:
    if not job.quorum:
        return None
    from fedsolve.privacy.credentials import read_peers  # needs a package that not everybody has

    return read_peers(Path(str(config["peers"])))


def _both(first: Callable[P, None], second: Callable[P, None]) -> Callable[P, None]:
    """Both functions, one after the other."""

    def act(*words: P.args, **named: P.kwargs) -> None:
        first(*words, **named)
        second(*words, **named)

    return act


def _reporter() -> Progress:
    """A line whenever a tenth more is done."""
    last = ""

    def report(what: str, done: int, total: int) -> None:
        nonlocal last
        line = f"{what}: {done} of {total}"
        if line != last and (done == total or done % max(1, total // 10) == 0):
            last = line
            _log.info(line)

    return report


def result_of(outcome: Outcome, task: Task, method: Method, job: Job, rules: Rules, seconds: float) -> Result:
    """What the server knows: figures, the global model and its state. Personal models stay at the sites."""
    noise = job.noisy()
    settings = {
        **{name: value for name, value in asdict(job).items() if name not in ("identity", "quorum", "noise")},
        **({"secure": True, "quorum": job.quorum} if job.quorum else {}),
        **({**asdict(noise), "noise": noise.by} if noise else {}),
        "set": parameters.values(method),
        "rounds": method.rounds,
        "runtime": "flower",
        **{item.name: getattr(rules, item.name) for item in fields(rules) if item.name != "keys"},
    }
    data = {"name": "sites", "fingerprint": "", "left_out": dict(outcome.failed)}
    result = outcome.result(method, task, settings=settings, data=data, models={}, seconds=seconds)
    if noise is None:
        return result
    # Whether digits were lost in noisy sums, nobody can tell by them.
    told = noise.told(clients=len(result.clients), task=task)
    return replace(result, warnings=(), privacy={**result.privacy, **told})
