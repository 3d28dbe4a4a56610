"""`fedsolve ledger`: the durable record of a closed-form federation."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedsolve.cli.text import ROWS, size
from fedsolve.cli.waiting import waiting
from fedsolve.data.reading import Reading, names_in
from fedsolve.errors import DataError, ParameterError
from fedsolve.study.settings import assignments

if TYPE_CHECKING:
    from fedsolve.ledger.records import Answer


app = typer.Typer(
    name="ledger",
    help="The durable record of a closed-form federation: late clients, exact removal, refusal of what cannot be.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


_LEDGER = typer.Argument(metavar="LEDGER", help="The file of the ledger.", show_default=False)
_DATA = typer.Option(
    metavar="DATA",
    help="The site's data: a file, a folder of pictures, or any --data of `fedsolve run`. With a column `client`, the "
    "client's own rows are taken.",
    show_default=False,
)
_CLIENT = typer.Option(metavar="NAME", help="The name of the client.", show_default=False)
_FEATURES = typer.Option(
    help="For features of pictures: their network on this machine, as in onnx:FILE. It must have the same weights.",
    show_default=False,
)
_LABEL = typer.Option(metavar="NAME,...", help="The columns to predict. Default: y or label.", show_default=False)
_OWNER = typer.Option(
    metavar="NAME", help="The column that names the owner of each row. Default: client.", show_default=False
)
_DROP = typer.Option(metavar="NAME,...", help="Columns to leave out.", show_default=False)
_STREAM = typer.Option(
    "--stream", help="Read Parquet in blocks: a file, or a folder of files, that need not fit into memory."
)


def _reading(label: str, owner: str, drop: str) -> Reading:
    return Reading(label=names_in(label), client=owner, drop=names_in(drop))


@app.command("create")
def ledger_create(
    path: Annotated[Path, _LEDGER],
    method: Annotated[str, typer.Option(help="afl, fedhip, apfl or fedprior.")] = "fedprior",
    assign: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="A parameter of the method. Repeat for more."),
    ] = None,
    like: Annotated[
        str,
        typer.Option(
            metavar="DATA", help="Take classes, names and the shape of inputs from these data.", show_default=False
        ),
    ] = "",
    label: Annotated[str, _LABEL] = "",
    owner: Annotated[str, _OWNER] = "",
    drop: Annotated[str, _DROP] = "",
    classes: Annotated[int, typer.Option(help="How many classes, without --like.", show_default=False)] = 0,
    inputs: Annotated[
        str, typer.Option(metavar="SHAPE", help="The shape of an input, without --like: 64, or 28x28.")
    ] = "",
    features: Annotated[str, typer.Option(help="The feature map, as in `fedsolve run`.")] = "identity",
    seed: Annotated[int, typer.Option(help="Decides what the method draws.")] = 0,
    bound: Annotated[
        float | None,
        typer.Option(help="The length that no sample's features exceed; others are refused.", show_default=False),
    ] = None,
    total_only: Annotated[
        bool,
        typer.Option("--total-only", help="Keep no single contributions. Removal then takes the client's file again."),
    ] = False,
    keys: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Take only what is signed with the keys of clients: their public halves, DIR/CLIENT.pub.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Make a ledger that nobody is in yet."""
    from fedsolve import methods
    from fedsolve.ledger.site import stated_task, task_of
    from fedsolve.ledger.store import Ledger

    if bool(like) == bool(classes):
        raise ParameterError("ledger create takes --like DATA, or --classes and --inputs")
    files = sorted(keys.glob("*.pub")) if keys else []
    if keys and not files:
        raise DataError(f"{keys} has no public keys: they are named CLIENT.pub")
    reading = _reading(label, owner, drop)
    task = task_of(like, features, reading=reading) if like else stated_task(classes, inputs, features)
    chosen = methods.create(method, assignments(assign or []))
    public = {file.stem: file for file in files}
    with Ledger.create(path, chosen, task, seed=seed, bound=bound, total_only=total_only, keys=public) as ledger:
        width, targets = ledger.terms.shape
        typer.echo(f"{path}: {method}, {targets} classes, {width} features of {str(task.features)[:200]}")
        typer.echo(f"next: fedsolve ledger invite {path} --out invitation.safetensors, and send it to the sites")


@app.command("invite")
def ledger_invite(
    path: Annotated[Path, _LEDGER],
    out: Annotated[Path, typer.Option(metavar="FILE", help="The file for the sites.", show_default=False)],
) -> None:
    """Write what a site needs to contribute: method, settings, classes, feature map. No data, no statistics."""
    from fedsolve.ledger.store import Ledger

    with Ledger(path) as ledger:
        ledger.terms.save(out)
    typer.echo(f"{out}: at a site, fedsolve ledger contribute {out} --data FILE --client NAME --out NAME.safetensors")


@app.command("contribute")
def ledger_contribute(
    invitation: Annotated[Path, typer.Argument(metavar="INVITATION", help="The file from the ledger.")],
    data: Annotated[str, _DATA],
    client: Annotated[str, _CLIENT],
    out: Annotated[Path, typer.Option(metavar="FILE", help="The contribution, to be sent.", show_default=False)],
    features: Annotated[str, _FEATURES] = "",
    label: Annotated[str, _LABEL] = "",
    owner: Annotated[str, _OWNER] = "",
    drop: Annotated[str, _DROP] = "",
    stream: Annotated[bool, _STREAM] = False,
    number: Annotated[
        int | None,
        typer.Option(
            help="A number above those of the client's contributions before: older ones are refused. Default: the time "
            "in nanoseconds.",
            show_default=False,
        ),
    ] = None,
    key: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Sign with this private key, as `ssh-keygen` makes it.", show_default=False),
    ] = None,
    policy: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="The site's own rules: lines MIN_CLASS=5, MAX_PARAMETERS=0.33, MAX_LEVERAGE=0.9, as in a site.env.",
            show_default=False,
        ),
    ] = None,
    anyway: Annotated[
        bool, typer.Option("--anyway", help="Write it even if it discloses single records to whoever reads it.")
    ] = False,
) -> None:
    """At a site: its statistics, in a file to be sent to the ledger."""
    from fedsolve.ledger.site import contribute
    from fedsolve.privacy.disclose import Rules
    from fedsolve.privacy.policy import Policy
    from fedsolve.texts import read_env

    if policy and anyway:
        raise ParameterError("--policy says what may be disclosed, and --anyway that all may: give one of them")
    own = Policy.of({name.lower(): value for name, value in read_env(policy).items()}).rules if policy else Rules()

    with waiting(quiet=False) as (progress, _):
        census = contribute(
            invitation, data, client, out, features=features, progress=progress, sequence=number, key=key,
            reading=_reading(label, owner, drop), rules=None if anyway else own, stream=stream,
        )  # fmt: skip
    typer.echo(f"{out}: {census.samples} samples of {census.classes} classes, {size(out.stat().st_size)}")


@app.command("add")
def ledger_add(
    path: Annotated[Path, _LEDGER],
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Contributions.", show_default=False)],
) -> None:
    """Take contributions in. One that cannot be is refused with the reason, and the others are taken."""
    from fedsolve.ledger.store import Ledger

    refusals: list[Answer] = []
    with Ledger(path) as ledger:
        for answer in ledger.offer_files(files):
            typer.echo(f"{answer.client}: {answer.event}" + (f", {answer.reason}" if answer.reason else ""))
            refusals += [answer] if answer.event == "rejected" else []
    if refusals:
        raise DataError(f"{len(refusals)} of {len(files)} refused; the reasons are in the journal of {path}")


@app.command("list")
def ledger_list(
    path: Annotated[Path, _LEDGER],
    journal: Annotated[bool, typer.Option("--journal", help="All that happened, refusals too.")] = False,
) -> None:
    """Show who is in, or all that happened."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from fedsolve.ledger.store import Ledger

    console = Console(highlight=False)
    with Ledger(path) as ledger:
        if journal:
            table = Table("when", "what", "client", "content", "why", box=None, pad_edge=False)
            for event in ledger.journal():
                table.add_row(event.at, event.event, escape(event.client), event.digest[:8], escape(event.reason))
            console.print(table)
            return
        terms, members = ledger.terms, ledger.members()
        refusals = sum(event.event == "rejected" for event in ledger.journal())
        table = Table("client", "samples", "classes", "bytes", "came", "content", box=None, pad_edge=False)
        for member in members:
            cells = (str(member.samples), str(member.classes), size(member.bytes), member.at, member.digest[:8])
            of = f", {member.cohort} members" if member.cohort else ""
            table.add_row(escape(member.client) + of, *cells)
    console.print(table)
    note = ", only the total is kept" if ledger.total_only else ""
    samples = sum(member.samples for member in members)
    clients = sum(member.heads for member in members)
    console.print(
        f"\n{terms.method.name}: {clients} clients, {samples} samples, {refusals} refused{note}\n"
        f"features: {terms.task.described}" + (f", at most {terms.bound:g} long" if terms.bound else ""),
        markup=False,
        soft_wrap=True,
    )


@app.command("remove")
def ledger_remove(
    path: Annotated[Path, _LEDGER],
    client: Annotated[str, typer.Argument(metavar="CLIENT", help="Its name in the ledger, or that of a cohort.")],
    contribution: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="What it contributed, where only the total is kept.", show_default=False),
    ] = None,
) -> None:
    """Take a client out, exactly: the model is then that of a federation that never had it."""
    from fedsolve.ledger.contribution import load_contribution
    from fedsolve.ledger.store import Ledger

    with Ledger(path) as ledger:
        statistics = load_contribution(contribution, ledger.terms) if contribution else None
        if ledger.total_only and statistics is None:
            raise DataError(
                f"{path} keeps only the total: to take {client!r} out, its contribution is needed again; ask it for "
                "the file and give it with --contribution FILE"
            )
        answer = ledger.remove(client, statistics)
        count = sum(member.heads for member in ledger.members())
    typer.echo(f"{client} is out; {count} clients are in. Models made before still know it: solve again")
    if answer.reason:
        typer.echo(answer.reason)


@app.command("trust")
def ledger_trust(
    path: Annotated[Path, _LEDGER],
    client: Annotated[str, typer.Argument(metavar="CLIENT", help="Whose key it is.")],
    key: Annotated[Path, typer.Argument(metavar="FILE", help="Its public key: FILE.pub of `ssh-keygen`.")],
) -> None:
    """Take contributions only with signatures from now on, and a client's only by the private half of this key."""
    from fedsolve.ledger.store import Ledger

    with Ledger(path) as ledger:
        ledger.trust(client, key)
    typer.echo(f"{client}: contributions in its name must be signed with its key")


@app.command("readmit")
def ledger_readmit(
    path: Annotated[Path, _LEDGER],
    client: Annotated[str, typer.Argument(metavar="CLIENT", help="Its name in the ledger.")],
) -> None:
    """Let a client in again with any contribution of its own: else, one that is not newer than its last is refused."""
    from fedsolve.ledger.store import Ledger

    with Ledger(path) as ledger:
        ledger.readmit(client)
    typer.echo(f"{client}: its next contribution is taken, whatever its number")


@app.command("solve")
def ledger_solve(
    path: Annotated[Path, _LEDGER],
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where model, state and message go.", show_default=False)],
) -> None:
    """Write the exact model of those who are in, and the message from which each site makes its own."""
    from fedsolve.ledger.store import Ledger

    with Ledger(path) as ledger:
        solved = ledger.solve()
    solved.save(out)
    typer.echo(
        f"{solved.clients} clients, {solved.samples} samples: {out}/models/global.safetensors, state.safetensors"
    )
    for sentence in solved.warnings:
        typer.echo(f"warning: {sentence}")
    typer.echo(f"for the sites: {out}/message.safetensors; there, fedsolve ledger personal message.safetensors ...")


@app.command("personal")
def ledger_personal(
    message: Annotated[Path, typer.Argument(metavar="MESSAGE", help="From `ledger solve`.", show_default=False)],
    data: Annotated[str, _DATA],
    client: Annotated[str, _CLIENT],
    out: Annotated[Path, typer.Option(metavar="FILE", help="The client's model.", show_default=False)],
    contribution: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="What it sent, if that was made on another machine.", show_default=False),
    ] = None,
    features: Annotated[str, _FEATURES] = "",
    label: Annotated[str, _LABEL] = "",
    owner: Annotated[str, _OWNER] = "",
    drop: Annotated[str, _DROP] = "",
    stream: Annotated[bool, _STREAM] = False,
) -> None:
    """At a site: its own model, from its data and the federation's message."""
    from fedsolve.ledger.site import personal

    with waiting(quiet=False) as (progress, _):
        site = personal(
            message, data, client, contribution=contribution, features=features, progress=progress,
            reading=_reading(label, owner, drop), stream=stream,
        )  # fmt: skip
    site.model.save(out)
    for sentence in site.warnings:
        typer.echo(f"warning: {sentence}")
    typer.echo(f"{out}: the model of {client}, whose data are {'' if site.counted else 'not '}in the federation's sum")


@app.command("verify")
def ledger_verify(path: Annotated[Path, _LEDGER]) -> None:
    """Check the file, every contribution, and the total against the sum of its parts."""
    from fedsolve.ledger.store import Ledger

    with Ledger(path) as ledger:
        check = ledger.verify()
    if check.faults:
        raise DataError(f"{path}: {'; '.join(check.faults)}")
    drift = "only the total is kept: nothing to sum again" if check.drift is None else f"drift {check.drift:.1e}"
    typer.echo(f"{path} is whole: {check.members} clients, {check.samples} samples, {drift}")


@app.command("influence")
def ledger_influence(
    path: Annotated[Path, _LEDGER],
    top: Annotated[int, typer.Option(help="How many clients to show.")] = ROWS,
) -> None:
    """Show what each client does to the predictions of all: who moves them, who harms, who does not fit."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from fedsolve.ledger.influence import SUSPECT
    from fedsolve.ledger.store import Ledger

    console = Console(highlight=False)
    with Ledger(path) as ledger:
        clients = ledger.influence()
    table = Table(box=None, pad_edge=False)
    table.add_column("client")
    for head in ("samples", "moves", "harm", "misfit", "length", "suspicion"):
        table.add_column(head, justify="right")
    for each in clients[:top]:
        cells = (f"{each.moved:.3f}", f"{each.harm:+.2e}", f"{each.misfit:.3f}", f"{each.length:.2f}")
        mark = f"[red]{each.suspicion:.1f}[/red]" if each.suspicion >= SUSPECT else f"{each.suspicion:.1f}"
        table.add_row(escape(each.client), str(each.samples), *cells, mark)
    console.print(table)
    console.print(
        "\nmoves: how far everybody's scores move without it. harm: how much less the others would err without it, on "
        "data their model never saw (negative: it helps). misfit: its own error by the model of the others (1: they "
        "know nothing of it; above: they contradict its labels). length: of its features, the median client's is 1. "
        f"suspicion: how many spreads misfit or length lie from the median client's; from {SUSPECT:g} on, look closer. "
        f"An honest client can be unusual, too. `fedsolve ledger remove {path} CLIENT` takes one out.",
        markup=False,
    )
