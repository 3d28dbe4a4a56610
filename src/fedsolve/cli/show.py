"""What a run prints in the end: figures per client and over all, and where everything is."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedsolve.cli.text import ROWS, gain, size

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from fedsolve.records import Whose
    from fedsolve.result import Result

BALANCED = ("auc", "balanced_accuracy")  # what to look at where classes are far from equal
ENGINES = {"flower:inline": ", through Flower's apps in this process", "flower:ray": ", through Flower's apps on Ray"}
COMMON = 0.8  # share of one class in the test samples above which accuracy says little


def show(result: Result, saved: Path) -> None:
    """Print the figures of a run, in a table that fits the terminal."""
    from rich.console import Console
    from rich.markup import escape

    from fedsolve.metrics import words
    from fedsolve.shown import gathered

    console = Console(highlight=False)
    settings = result.settings
    predicted = words.predicted(result.task, settings.get("label") or "")
    console.print(
        f"[bold]{escape(settings['method'])}[/bold] on {escape(settings['data'])} predicts {escape(predicted)}: "
        f"{settings['clients']} clients, split {settings['partition']}, seed {settings['seed']}"
        + ENGINES.get(settings["runtime"], "")
        + (f", trained on {settings['device']}" if settings.get("device") else "")
    )
    others: list[Whose] = ["alone"] if _has(result, "alone") else []
    if _has(result, "shared") and not _one_model(settings["method"]):
        others.append("shared")
    if result.privacy.get("secure"):
        console.print(gathered(result.privacy), soft_wrap=True)
    else:
        _print_clients(console, result, others)
    _totals(console, result, others)
    print_warnings(console, result.warnings)
    _print_remarks(console, result)
    files = (
        f"result.json, state.safetensors, models/ ({len(result.models)} personal{', 1 global' * bool(result.shared)})"
        + (f", groups/ ({len(result.groups)})" if result.groups else "")
    )
    console.print(f"saved in [bold]{escape(str(saved))}[/bold]: {files}", soft_wrap=True)
    example = next(iter(result.models), None)
    if example:
        command = f"try: fedsolve predict {saved}/models/{example}.safetensors --data FILE"
        console.print(" ".join([command, *_told(settings)]), soft_wrap=True, markup=False)


def _print_clients(console: Console, result: Result, others: list[Whose]) -> None:
    """Print one row per client, of many the worst and the best."""
    from fedsolve.metrics import words

    clients, metric = result.clients, result.main
    names = words.worst_first(metric, {name: client.metrics.get(metric) for name, client in clients.items()})
    shown = names if len(names) <= ROWS else names[: ROWS // 2] + names[-ROWS // 2 :]
    table, left_out = _fitting(console, result, shown, others)
    console.print(table)
    if len(shown) < len(clients):
        console.print(f"(the {ROWS // 2} worst and best of {len(clients)} clients; all are in result.json)")
    if left_out:
        console.print(f"(also chosen for each client, in result.json: {', '.join(left_out)})")


def _has(result: Result, whose: Whose) -> bool:
    """Whether there are figures of these models: of a client, or of all test samples together."""
    return whose in result.pooled or any(client.of(whose) for client in result.clients.values())


def _told(settings: Mapping[str, Any]) -> list[str]:
    """The options that tell `predict` what a model needs beside its file."""
    from fedsolve.study.resume import named

    texts = named(settings)
    options = {"--method": settings["method"]} if ":" in settings["method"] else {}
    options |= {f"--{key[-1]}": text for key, text in texts.items() if key in (("features",), ("set", "model"))}
    return [f"{option} {shlex.quote(text)}" for option, text in options.items()]


def print_warnings(console: Console, warnings: Iterable[str]) -> None:
    """Print what not to trust, one line each."""
    for sentence in warnings:
        console.print(f"warning: {sentence}", markup=False, soft_wrap=True)


def print_groups(console: Console, result: Result) -> None:
    """Print how many groups there are and how large, where there are groups."""
    if result.groups:
        sizes = sorted({len(group.members) for group in result.groups.values()})
        groups = f"{len(result.groups)} group{'s' * (len(result.groups) != 1)}"
        clients = f"{' to '.join(map(str, dict.fromkeys((sizes[0], sizes[-1]))))} client{'s' * (sizes[-1] != 1)}"
        console.print(f"{groups} of {clients}: who is in which is in result.json, and on the page of a report")


def _fitting(console: Console, result: Result, names: list[str], others: list[Whose]) -> tuple[Table, list[str]]:
    """The table of clients that fits the terminal, and what was chosen for clients but has no room in it.

    Where room is short, headings of two words stand in two lines; where that is not enough, columns are left out.
    """
    from rich.measure import Measurement

    chosen = sorted({name for client in result.clients.values() for name in client.chosen})
    endless = console.options.update(max_width=10_000)
    for columns, gap in ((chosen, " "), (chosen, "\n"), ([], " "), ([], "\n")):
        table = _clients(result, names, others, columns, gap)
        if Measurement.get(console, endless, table).maximum <= console.width:
            break
    return table, [] if columns else chosen


def _clients(result: Result, names: list[str], others: list[Whose], chosen: list[str], gap: str) -> Table:
    """One row per client; beside its figure those of other models, and what was chosen for it."""
    from rich.markup import escape
    from rich.table import Table

    from fedsolve.metrics import words

    metric = result.main
    table = Table(box=None, pad_edge=False)
    table.add_column("client")
    titles = {"alone": "alone", "shared": "global"}
    beside = [head for other in others for head in (titles[other], f"{words.beyond(metric)}{gap}{titles[other]}")]
    for head in ["train", "test", words.title(metric), *beside, *chosen]:
        table.add_column(head, justify="right")
    for name in names:
        client = result.clients[name]
        own = client.metrics.get(metric)
        cells = [str(client.train), str(client.test), words.text(metric, own)]
        for other in others:
            value = client.of(other).get(metric)
            cells += [words.text(metric, value), gain(metric, own, value)]
        cells += [f"{client.chosen[key]:.3g}" if key in client.chosen else "" for key in chosen]
        table.add_row(escape(name), *cells)
    return table


def _print_remarks(console: Console, result: Result) -> None:
    """Print what a reader should know of the figures, the data and the rounds."""
    for sentence in (below_constant(result), imbalance(result)):
        if sentence:
            console.print(sentence, markup=False, soft_wrap=True)
    moved, skipped = result.data.get("moved", 0), result.data.get("skipped", [])
    if moved:
        console.print(f"{moved} samples were moved from the largest clients to those with too few")
    if skipped:
        console.print(
            f"{len(skipped)} pictures that cannot be read were left out: {', '.join(skipped[:10])}", markup=False
        )
    dropped = result.data.get("dropped", [])
    if dropped:
        more = f" and {len(dropped) - 10} more" if len(dropped) > 10 else ""
        console.print(
            f"the same in every row, and so left out: {', '.join(dropped[:10])}{more}", markup=False, soft_wrap=True
        )
    print_groups(console, result)
    missing = result.history[-1].missing if result.history else ()
    if missing:
        console.print(f"not part of the last round: {', '.join(missing[:10])}{' ...' if len(missing) > 10 else ''}")
    if result.privacy.get("epsilon") is not None:
        console.print(promise(result), markup=False, soft_wrap=True)
    elif exposed := disclosed(result):
        console.print(exposed, markup=False)
    plural = "" if result.rounds == 1 else "s"
    console.print(
        f"{result.rounds} round{plural}, {size(result.bytes_up)} up, {size(result.bytes_down)} down, "
        f"{result.seconds.total:.2f} s"
    )
    if sentence := emulated(result):
        console.print(sentence, markup=False, soft_wrap=True)


def emulated(result: Result) -> str:
    """What the rounds took on emulated devices, and how long clients waited there; nothing where none were."""
    from fedsolve.records import Times

    words = result.settings.get("devices")
    if words is None:
        return ""
    seconds = sum(line.seconds for line in result.history)
    told = f"on emulated devices, {words}: {seconds:.2f} s, {seconds / max(result.rounds, 1):.2f} s a round"
    times = [client.seconds for client in result.clients.values() if client.seconds is not None]
    if not times:
        return told
    every = sum(times, start=Times())
    return f"{told}; of their seconds clients waited {100 * every.idle:.0f} % for the slowest of a round"


def promise(result: Result) -> str:
    """What the noise of a run promises, and to whom."""
    told = result.privacy
    who = "sites, each to what it sends" if told["by"] == "sites" else "the server, which sees what sites send"
    if (told["honest"] or 1) > 1:
        who = f"sites, who share it: in every sum at least {told['honest']} must tell nobody their part"
    return (
        f"noise: epsilon {told['epsilon']:g}, delta {told['delta']:g} for {told['neighbours']}, added by {who}; no "
        f"attack tells members of the sums from others with an area under the curve above "
        f"{told['membership_auc']:.3f}; not covered: {', '.join(told['not_covered'])}"
    )


def disclosed(result: Result) -> str:
    """That sums of clients would disclose single records, had they been sent; nothing where none would be."""
    count, total = result.data.get("exposed", 0), len(result.clients)
    if not count or result.privacy.get("secure") or not _closed_form(result.settings["method"]):
        return ""
    return (
        f"the server saw every client's sums, and those of {count} of {total} would disclose single records; "
        "`fedsolve disclose` with the same data says which and why"
    )


def below_constant(result: Result) -> str:
    """That a method does worse than the best constant answer, all test samples pooled; nothing where it does not."""
    from fedsolve.metrics import words

    metric = result.main
    constant, pooled = result.baseline.get(metric), result.spread().pooled
    if constant is None or pooled is None or not words.gain(metric, pooled, constant) < 0:
        return ""
    value, worse = words.text(metric, constant), "worse than" if words.less_is_better(metric) else "below"
    if metric == "accuracy":
        said = f"each client's commonest class is right for {value} of all test samples"
    else:
        answer = "mean gives" if result.task.get("kind") == "numbers" else "shares of classes give"
        said = f"each client's {answer} {words.title(metric)} {value} on all test samples"
    return f"{result.method} is {worse} the best constant answer: {said}"


def imbalance(result: Result) -> str:
    """That accuracy says little, since nearly all test samples are of one class; nothing where they are not."""
    from fedsolve.metrics import words

    counts = [sum(row) for row in result.confusion]
    if result.main != "accuracy" or not counts or not max(counts) > COMMON * sum(counts):
        return ""
    names = result.task.get("names") or range(len(counts))
    figures = [f"{words.title(name)} {words.text(name, result.spread(metric=name).mean)}" for name in BALANCED]
    return (
        f"{100 * max(counts) / sum(counts):.0f} % of all test samples are of class {names[counts.index(max(counts))]}, "
        f"so accuracy says little: {', '.join(figures)} (mean over clients)"
    )


def _totals(console: Console, result: Result, others: Iterable[Whose]) -> None:
    from rich.table import Table

    from fedsolve.metrics import words

    titles: dict[Whose, str] = {"personal": result.method, "alone": "training alone", "shared": "one global model"}
    rows = [(titles[whose], result.spread(whose)) for whose in ("personal", *others)]
    constant = result.spread("constant")
    if constant.pooled is not None:
        rows.append(("best constant answer", constant))
    table = Table("", "mean over clients", "all test samples", "worst tenth", box=None, pad_edge=False)
    for column in table.columns[1:]:
        column.justify = "right"
    for title, over in rows:
        figures = (over.mean, over.pooled, over.worst_decile)
        table.add_row(title, *(words.text(result.main, value) for value in figures))
    console.print()
    console.print(table)
    console.print()


def _closed_form(method: str) -> bool:
    from fedsolve.study.experiment import class_of

    return class_of(method).closed_form and method != "local"


def _one_model(method: str) -> bool:
    """Whether a method has one model for all, so that a column for the global one would say nothing new."""
    from fedsolve.laws import OneModel
    from fedsolve.study.experiment import class_of

    return any(isinstance(law, OneModel) for law in class_of(method).laws)
