"""`fedsolve deploy`: a federation across machines."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedsolve.cli import members, operator
from fedsolve.cli.options import check_place
from fedsolve.cli.show import print_groups, print_warnings, promise
from fedsolve.cli.text import size
from fedsolve.errors import DataError, ParameterError
from fedsolve.study.settings import Settings, assignments, share_of

if TYPE_CHECKING:
    from fedsolve.result import Result


app = typer.Typer(
    help="A federation across machines, on Flower: files, keys, a run, and how it fares. See docs/deploy.md.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@app.command("init")
def deploy_init_command(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A new folder.")],
    sites: Annotated[str, typer.Option(help="The names of the sites, as in ward-a,ward-b,ward-c.")],
    address: Annotated[str, typer.Option(metavar="HOST:PORT", help="Where sites reach the server.")],
    trial: Annotated[
        bool,
        typer.Option("--trial", help="For a trial on one machine: also make all sites' keys, and one script for all."),
    ] = False,
    node_port: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=65535,
            help="The port of the first site's node, at the site; the next has the next. Default: "
            "chosen when a site joins.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Write a federation's files: server, sites, Flower app, trial certificates, start scripts, proxy.

    Keys of sites are made at the sites, by `fedsolve deploy join`.
    """
    from fedsolve import deploy

    deploy.init(folder, [name.strip() for name in sites.split(",") if name.strip()], address, node_port=node_port)
    if trial:
        deploy.trial(folder)
    typer.echo(
        f"{folder}/server is the server's, {folder}/sites/NAME each site's; {folder}/README.txt says what is next"
    )


app.command("join")(members.join_command)
app.command("add")(members.add_command)
app.command("remove")(members.remove_command)
app.command("rotate")(members.rotate_command)
app.command("status")(operator.status_command)
app.command("audit")(operator.audit_command)


@app.command("check")
def deploy_check_command(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The site's folder, as in trial/sites/ward-a.")],
    features: Annotated[
        str, typer.Option(help="Also try this feature map on the site's data.", show_default=False)
    ] = "",
) -> None:
    """Say what is missing or wrong at a site: version, key, certificate, server, port, data, features, state."""
    from fedsolve import deploy

    wrong = 0
    for inspection in deploy.check(folder, features=features):
        wrong += not inspection.fine
        typer.echo(f"{'ok   ' if inspection.fine else 'WRONG'} {inspection.what}: {inspection.words}")
    if wrong:
        raise typer.Exit(1)


@app.command("service")
def deploy_service_command(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder of the server or of a site.")],
    user: Annotated[str, typer.Option(help="The user that the service runs under, who is not root.")] = "fedsolve",
) -> None:
    """Write a service of systemd for a server or a site, on the machine where it runs: hardened, started at boot.

    Nothing is installed; the first lines of the file say how. See docs/operations.md.
    """
    from fedsolve import deploy

    unit = deploy.service(folder, user)
    typer.echo(f"{unit}: it runs {folder}/start.sh as {user}; copy it to /etc/systemd/system to install it")


@app.command("run")
def deploy_run_command(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The server's folder, as in trial/server.")],
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where figures and the global model go.")],
    method: Annotated[str, typer.Option(help="See `fedsolve methods`.")] = "fedprior",
    assign: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="A parameter of the method. Repeat for more."),
    ] = None,
    features: Annotated[str, typer.Option(help="The feature map, the same at all sites.")] = "identity",
    test: Annotated[
        str | None,
        typer.Option(
            help="Insist on the share that sites test on, which is theirs to say: one with another does not answer.",
            show_default=False,
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Decides all draws. Splits are the sites' own.")] = 0,
    rounds: Annotated[int | None, typer.Option(help="For methods that take several.", show_default=False)] = None,
    participation: Annotated[float, typer.Option(help="Share of the sites that take part in a round.")] = 1.0,
    min_clients: Annotated[int, typer.Option(help="The run stops when fewer sites answer.")] = 2,
    wait: Annotated[float, typer.Option(help="Seconds to wait for the sites at the start.")] = 120.0,
    timeout: Annotated[float, typer.Option(help="Seconds to wait for an answer before a site is left out.")] = 1800.0,
    exclude: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Leave this site out. Repeat for more.", show_default=False),
    ] = None,
    eval_every: Annotated[
        int,
        typer.Option(metavar="N", help="Evaluate every N rounds; 0: after the last. One message per site."),
    ] = 0,
    ledger: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Also put every site's reply, or the secure sum of them, into this ledger; see `fedsolve ledger`.",
            show_default=False,
        ),
    ] = None,
    secure: Annotated[
        bool | None,
        typer.Option(
            "--secure/--plain",
            help="Whether replies are added up under masks, so that the server sees sums alone. Default: from three "
            "sites on.",
            show_default=False,
        ),
    ] = None,
    quorum: Annotated[
        int | None, typer.Option(help="The fewest sites in a secure sum. Default: 3.", show_default=False)
    ] = None,
    epsilon: Annotated[
        float | None,
        typer.Option(help="Sites hide single records by noise of this epsilon; see docs/noise.md.", show_default=False),
    ] = None,
    delta: Annotated[float, typer.Option(help="The delta of the noise.")] = 1e-5,
    honest: Annotated[
        int, typer.Option(help="In a secure sum: by how many sites the noise is shared that tell nobody their share.")
    ] = 1,
    target_bound: Annotated[
        float | None,
        typer.Option(help="With noise, where numbers are predicted: the size they are clipped to.", show_default=False),
    ] = None,
) -> None:
    """Run a method on the sites. Figures and the global model come here; personal models stay at the sites."""
    from fedsolve import deploy, methods, parameters
    from fedsolve.privacy.noise import Noise
    from fedsolve.privacy.policy import OWN
    from fedsolve.result import Result
    from fedsolve.runtime.job import Job, Rules
    from fedsolve.study.experiment import method_of

    check_place(out)
    methods.method_class(method)  # sites look it up by its name, so it must be of the catalogue
    instance = method_of(Settings(method=method, set=assignments(assign or []), rounds=rounds))
    rules = Rules((), min_clients, wait, timeout, participation, eval_every, exclude=tuple(exclude or ()))
    least = _quorum(secure, quorum, len(set(deploy.sites_of(folder)) - set(rules.exclude)))
    noise = None if epsilon is None else Noise(epsilon, delta, honest=honest, target_bound=target_bound)
    job = Job(
        method, parameters.values(instance), features, seed, OWN if test is None else share_of(test),
        quorum=least, noise=asdict(noise) if noise else {},
    )  # fmt: skip
    network = next(iter(parameters.imported(instance).values()), "")
    _show_sites(Result.load(deploy.run(folder, job, rules, out, typer.echo, ledger), model=network), out)


def _quorum(secure: bool | None, quorum: int | None, sites: int) -> int:
    """The fewest sites in a secure sum; 0, where sums are asked for as they are."""
    from fedsolve.privacy.graph import LEAST
    from fedsolve.runtime.gather import Secure

    if secure is None:
        secure = quorum is not None or sites >= LEAST
    if not secure:
        if quorum is not None:
            raise ParameterError("--quorum is the fewest sites in a secure sum: leave it out, or --plain")
        return 0
    return Secure(LEAST if quorum is None else quorum).quorum


def _show_sites(result: Result, saved: Path) -> None:
    from rich.console import Console
    from rich.table import Table

    from fedsolve import shown
    from fedsolve.metrics import words

    console = Console(highlight=False)
    metric = result.main
    if result.privacy.get("secure"):
        spread = result.metrics.get(metric)
        pooled = words.text(metric, spread.pooled if spread else None)
        console.print(shown.gathered(result.privacy), markup=False, soft_wrap=True)
        console.print(f"{words.title(metric)} on all test samples together: {pooled}", markup=False)
    else:
        table = Table("site", "train", "test", words.title(metric), "global", box=None, pad_edge=False)
        for name, site in result.clients.items():
            figures = (words.text(metric, each.get(metric)) for each in (site.metrics, site.shared_metrics))
            table.add_row(name, *("" if n is None else str(n) for n in (site.train, site.test)), *figures)
        console.print(table)
    for name, reason in result.data.get("left_out", {}).items():
        console.print(f"left out: {name}: {reason}", markup=False, soft_wrap=True)
    print_warnings(console, result.warnings)
    if result.privacy.get("epsilon") is not None:
        console.print(promise(result), markup=False, soft_wrap=True)
    print_groups(console, result)
    console.print(
        f"{result.rounds} round{'s' * (result.rounds != 1)}, {size(result.bytes_up)} up, "
        f"{size(result.bytes_down)} down, {result.seconds.total:.1f} s; saved in {saved}",
        markup=False,
        soft_wrap=True,
    )
    console.print("each site's model is at the site, in its folder state/models", markup=False)


@app.command("answer", hidden=True)
def deploy_answer_command(
    address: Annotated[str, typer.Argument(metavar="HOST:PORT", help="The site's own node, on this machine.")],
    secret: Annotated[Path, typer.Argument(metavar="FILE", help="What the node and this command both know.")],
) -> None:
    """At a site, beside its node: answer messages by the fedsolve that is installed here. `start.sh` calls it."""
    from fedsolve.deploy import node

    try:
        content = secret.read_bytes()
    except OSError as error:
        raise DataError(f"cannot read {secret}: {error.strerror or error}") from error
    node.serve(address, content)


app.command("register", hidden=True)(members.register_command)
app.command("log", hidden=True)(operator.log_command)
