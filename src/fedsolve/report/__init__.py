"""One self-contained page from results on disk: figures to look at first, every number in a table behind them.

Nothing is computed again. Plots are SVG with their text as text and their colours as variables of the page, so that
they follow its light or dark theme; each is as wide as a phone, and a wider screen shows several side by side.
"""

from __future__ import annotations

import html
import io
import json
import re
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from fedsolve import codec
from fedsolve.errors import DataError
from fedsolve.study.compare import FAILURE
from fedsolve.study.experiment import command

WIDTH = 4.4  # inches of a plot: 422 pixels, a phone held upright
# Okabe and Ito's colours, which colour-blind readers tell apart, without the two that vanish on white or on black.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
MARKERS = "osD^vP"
INK, FAINT = "#010203", "#040506"  # stand for variables of the page


@dataclass(frozen=True)
class Entry:
    """A run on disk, or why there is none."""

    place: Path
    method: str
    seed: int
    found: Mapping[str, Any]  # result.json
    weights: np.ndarray[Any, Any] | None = None  # who listens to whom, where a method learns that
    failure: str = ""

    @property
    def clients(self) -> Mapping[str, Mapping[str, Any]]:
        """Figures of the clients."""
        clients: Mapping[str, Mapping[str, Any]] = self.found.get("clients", {})
        return clients


def entries(folders: Iterable[Path]) -> list[Entry]:
    """The runs in folders, and in the folders below them."""
    places: dict[Path, None] = {}
    for folder in folders:
        if not folder.is_dir():
            raise DataError(f"there is no folder {folder}")
        marks = sorted(path for name in ("result.json", FAILURE) for path in folder.rglob(name))
        if not marks:
            raise DataError(f"{folder} holds no results: neither a result.json nor a folder with one")
        places |= dict.fromkeys(path.parent for path in marks)
    return [_entry(place) for place in places]


def _entry(place: Path) -> Entry:
    try:
        if not (place / "result.json").is_file():
            said = json.loads((place / FAILURE).read_text())
            return Entry(place, str(said["method"]), int(said["seed"]), {}, failure=str(said["reason"]))
        found = json.loads((place / "result.json").read_text())
        weights = None
        if found["method"] == "fedapa":
            weights = codec.read_file(place / "state.safetensors")[0].get("weights")
        return Entry(place, found["method"], int(found["settings"].get("seed", 0)), found, weights)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{place} holds a damaged result: {type(error).__name__}: {error}") from error


def check() -> None:
    """Refuse where no page can be drawn; a comparison asks before it runs anything."""
    try:
        import matplotlib  # noqa: F401  (whether it is there is the question)
    except ImportError as error:
        raise DataError("a report needs matplotlib: pip install 'fedsolve[report]'") from error


def write(folders: Sequence[Path], out: Path) -> Path:
    """Write the page for the runs in `folders`."""
    check()
    import matplotlib

    with matplotlib.rc_context(_STYLE):
        page = _page(entries(folders))
    out.parent.mkdir(parents=True, exist_ok=True)
    codec.write_bytes(out, page.encode())
    return out


# --- figures, gathered ---


@dataclass(frozen=True)
class Group:
    """All runs of one method with the same parameters, over seeds."""

    name: str
    colour: str
    marker: str
    runs: tuple[Entry, ...]

    def each(self, *path: str) -> list[float]:
        """A number of result.json, of each run that has it."""
        found = []
        for run in self.runs:
            value: Any = run.found
            for key in path:
                value = value.get(key) if isinstance(value, Mapping) else None
            if value is not None:
                found.append(float(value))
        return found

    def mean(self, *path: str) -> float | None:
        """The mean over seeds."""
        values = self.each(*path)
        return statistics.fmean(values) if values else None


def groups(runs: Sequence[Entry]) -> list[Group]:
    """Methods, the most accurate first. Runs of one method that differ in parameters are told apart by them."""
    found: dict[str, dict[str, list[Entry]]] = {}
    for run in runs:
        if not run.failure:
            kind = json.dumps(run.found["settings"].get("set", {}), sort_keys=True)
            found.setdefault(run.method, {}).setdefault(kind, []).append(run)
    named: list[tuple[str, tuple[Entry, ...]]] = []
    for method, kinds in found.items():
        differing = _differing([json.loads(kind) for kind in kinds])
        for kind, members in kinds.items():
            chosen = json.loads(kind)
            words = ", ".join(f"{name}={chosen.get(name)}" for name in differing)
            named.append((f"{method} ({words})" if words else method, tuple(sorted(members, key=lambda run: run.seed))))
    order = sorted(named, key=lambda item: -(Group(item[0], "", "", item[1]).mean("accuracy", "mean") or 0.0))
    return [
        Group(name, COLOURS[i % len(COLOURS)], MARKERS[i // len(COLOURS) % len(MARKERS)], members)
        for i, (name, members) in enumerate(order)
    ]


def _differing(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    names = sorted({name for each in settings for name in each})
    return [name for name in names if len({json.dumps(each.get(name)) for each in settings}) > 1]


def per_client(group: Group, which: str = "accuracy") -> dict[str, float]:
    """Each client's figure, as the mean over seeds."""
    values: dict[str, list[float]] = {}
    for run in group.runs:
        for client, figures in run.clients.items():
            if figures.get(which) is not None:
                values.setdefault(client, []).append(figures[which])
    return {client: statistics.fmean(each) for client, each in sorted(values.items())}


def gains(group: Group, alone: Mapping[int, Mapping[str, float]]) -> dict[str, float]:
    """Points of accuracy that each client gains over training alone on the same split, as the mean over seeds."""
    values: dict[str, list[float]] = {}
    for run in group.runs:
        for client, figures in run.clients.items():
            before = figures.get("alone", alone.get(run.seed, {}).get(client))
            if figures.get("accuracy") is not None and before is not None:
                values.setdefault(client, []).append(100 * (figures["accuracy"] - before))
    return {client: statistics.fmean(each) for client, each in sorted(values.items())}


# --- plots ---

_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "fedsolve",
    "font.family": "sans-serif",
    "font.size": 9.5,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": FAINT,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": FAINT,
    "grid.linewidth": 0.5,
    "xtick.color": INK,
    "ytick.color": INK,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "legend.frameon": False,
    "lines.linewidth": 1.6,
    "figure.constrained_layout.use": True,
}


def _svg(height: float, draw: Callable[[Any], Mapping[str, Sequence[str]] | None]) -> str:
    """A plot as SVG for the page. `draw` may return the words that belong to the points of a named collection."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH, height))
    words = draw(figure) or {}
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    text = buffer.getvalue()
    text = (
        re.sub(r"<!--.*?-->\s*", "", text[text.index("<svg") :])
        .replace(INK, "var(--ink)")
        .replace(FAINT, "var(--faint)")
    )
    for name, lines in words.items():
        text = _with_titles(text, name, lines)
    return re.sub(r'font: ([\d.]+)px [^;"]+', r"font: \1px var(--sans)", text)


def _with_titles(svg: str, name: str, lines: Sequence[str]) -> str:
    """The words that a pointer over each point of a collection shows."""
    start = svg.index(f'<g id="{name}">')
    remaining = iter(lines)

    def titled(found: re.Match[str]) -> str:
        line = next(remaining, None)
        return found.group(0) if line is None else f"{found.group(1)}><title>{html.escape(line)}</title></use>"

    return svg[:start] + re.sub(r"(<use [^>]*?)/>", titled, svg[start:], count=len(lines))


def _rows(figure: Any, found: Sequence[Group]) -> Any:
    """Axes with a row a method, the best on top."""
    axes = figure.add_subplot()
    axes.set_yticks(range(len(found)), [_wrapped(group.name) for group in found])
    axes.set_ylim(len(found) - 0.4, -0.6)
    axes.grid(axis="y", visible=False)
    axes.tick_params(axis="y", length=0)
    return axes


def _wrapped(name: str) -> str:
    return name if len(name) <= 18 else name.replace(" (", "\n(", 1)


def _spread(values: Mapping[str, float], row: int) -> np.ndarray[Any, Any]:
    """Heights around a row, so that points do not hide each other: the same each time."""
    return np.asarray(row + 0.16 * np.sin(2.4 * np.arange(len(values)) + 1.0))


def _accuracy(found: Sequence[Group]) -> str:
    def draw(figure: Any) -> dict[str, list[str]]:
        axes, words = _rows(figure, found), {}
        for row, group in enumerate(found):
            clients = per_client(group)
            points = axes.scatter(
                [100 * value for value in clients.values()],
                _spread(clients, row),
                s=14,
                color=group.colour,
                alpha=0.45,
                lw=0,
            )
            points.set_gid(f"clients-{row}")
            words[f"clients-{row}"] = [f"{name}: {100 * value:.1f} %" for name, value in clients.items()]
            means = [100 * value for value in group.each("accuracy", "mean")]
            if means:
                middle = statistics.fmean(means)
                spread = [[middle - min(means)], [max(means) - middle]]
                axes.errorbar(middle, row, xerr=spread, fmt="|", ms=20, mew=2.4, color=INK, capsize=3, elinewidth=1.4)
        axes.set_xlabel("accuracy on own test data, %")
        return words

    return _svg(1.0 + 0.52 * len(found), draw)


def _gain(found: Sequence[Group], alone: Mapping[int, Mapping[str, float]]) -> str:
    shown = [(group, gains(group, alone)) for group in found if not group.name.startswith("local")]
    shown = [(group, values) for group, values in shown if values]
    if not shown:
        return ""

    def draw(figure: Any) -> dict[str, list[str]]:
        axes, words = _rows(figure, [group for group, _ in shown]), {}
        axes.axvline(0, color=INK, lw=1)
        for row, (group, values) in enumerate(shown):
            points = axes.scatter(
                list(values.values()), _spread(values, row), s=14, color=group.colour, alpha=0.6, lw=0
            )
            points.set_gid(f"gains-{row}")
            words[f"gains-{row}"] = [f"{name}: {value:+.1f} points" for name, value in values.items()]
            better, worse = sum(v > 0 for v in values.values()), sum(v < 0 for v in values.values())
            axes.text(
                1.0,
                row - 0.34,
                f"{better} gain, {worse} lose",
                transform=axes.get_yaxis_transform(),
                ha="right",
                size=8,
            )
        axes.set_xlabel("points of accuracy over training alone")
        return words

    return _svg(1.0 + 0.55 * len(shown), draw)


def _against(
    found: Sequence[Group],
    cost: Callable[[Group], float | None],
    words_of: Callable[[float], str],
    label: str,
    title: str,
) -> str:
    shown = [(group, cost(group), group.mean("accuracy", "mean")) for group in found]
    points = [(group, x, y) for group, x, y in shown if x is not None and y is not None]
    if not points:
        return ""

    def draw(figure: Any) -> dict[str, list[str]]:
        axes, words = figure.add_subplot(), {}
        positive = [x for _, x, _ in points if x > 0]
        least = min(positive, default=1.0) / 3
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(lambda value, _: words_of(value))
        axes.xaxis.set_minor_formatter("")
        for number, (group, x, y) in enumerate(points):
            mark = axes.scatter(
                max(x, least), 100 * y, s=46, color=group.colour, marker=group.marker, lw=0, label=group.name
            )
            mark.set_gid(f"{title}-{number}")
            words[f"{title}-{number}"] = [f"{group.name}: {100 * y:.1f} %, {words_of(x)}"]
        axes.set_xlabel(label + (" (left edge: none)" if any(x <= 0 for _, x, _ in points) else ""))
        axes.set_ylabel("mean accuracy, %")
        figure.legend(loc="outside lower center", ncols=2, fontsize=8.5, handletextpad=0.2, columnspacing=1.0)
        return words

    return _svg(2.9 + 0.11 * len(points), draw)


def _convergence(found: Sequence[Group]) -> str:
    if max((group.mean("rounds") or 0 for group in found), default=0) <= 1:
        return ""

    def draw(figure: Any) -> None:
        axes = figure.add_subplot()
        last = max(int(group.mean("rounds") or 1) for group in found)
        for group in found:
            lines: dict[int, list[float]] = {}
            for run in group.runs:
                for line in run.found["history"]:
                    if line["accuracy"] is not None:
                        lines.setdefault(line["round"], []).append(100 * line["accuracy"])
            x, y = list(lines), [statistics.fmean(values) for values in lines.values()]
            if len(x) > 1:
                axes.plot(
                    x, y, color=group.colour, marker=group.marker, markevery=max(1, len(x) // 8), ms=4, label=group.name
                )
            elif x:  # over after a round: a level to reach
                axes.plot(
                    [x[0], last],
                    [y[0], y[0]],
                    color=group.colour,
                    ls=(0, (4, 3)),
                    lw=1.2,
                    label=f"{group.name}, 1 round",
                )
        axes.set_xlabel("round")
        axes.set_ylabel("mean accuracy, %")
        figure.legend(loc="outside lower center", ncols=2, fontsize=8.5, columnspacing=1.0)

    return _svg(3.0 + 0.11 * len(found), draw)


def _heat(values: np.ndarray[Any, Any], x: str, y: str, names: Sequence[str], bar: str) -> str:
    def draw(figure: Any) -> None:
        axes = figure.add_subplot()
        image = axes.imshow(values, cmap="viridis", aspect="auto", interpolation="nearest")
        axes.grid(visible=False)
        axes.set_xlabel(x)
        axes.set_ylabel(y)
        for axis in (axes.xaxis, axes.yaxis):  # there is no client 2.5
            axis.get_major_locator().set_params(integer=True)
        if 0 < len(names) <= 20:
            axes.set_yticks(range(len(names)), names, size=7.5)
        colours = figure.colorbar(image, ax=axes, location="bottom", fraction=0.05, pad=0.02, label=bar)
        colours.outline.set_visible(False)

    return _svg(1.7 + 0.135 * max(8, min(len(values), 28)), draw)


# --- the page ---


def _page(runs: Sequence[Entry]) -> str:
    found = groups(runs)
    alone = {
        run.seed: {name: c["accuracy"] for name, c in run.clients.items()} for run in runs if run.method == "local"
    }
    alone = {seed: {name: value for name, value in each.items() if value is not None} for seed, each in alone.items()}
    plots = []

    def plot(title: str, words: str, svg: str) -> None:
        if svg:
            plots.append(f"<figure><h2>{title}</h2><p>{words}</p>{svg}</figure>")

    if found:
        plot(
            "Accuracy",
            "A dot is a client, the bar the mean over clients, its whiskers the range over seeds.",
            _accuracy(found),
        )
        plot("Who gains, who loses", "Each client against training alone on the same data.", _gain(found, alone))
        plot(
            "What it sends",
            "Bytes that all clients together send and receive.",
            _against(found, _sent, _size, "up and down, all clients", "sent"),
        )
        plot(
            "How long it takes",
            "Seconds of the whole run on this machine.",
            _against(found, lambda group: group.mean("seconds", "total"), _duration, "whole run", "time"),
        )
        plot("Round by round", "Mean accuracy after each round; dashed: done after one.", _convergence(found))
        plot("How the data are split", "Samples of each class at each client, first seed.", _split(runs))
        for weights in [run.weights for run in runs if run.weights is not None][:1]:
            words = "Row: a client. Column: whom it listens to. Its own weight stands on the diagonal."
            plot("What FedAPA learnt", words, _heat(weights, "client", "client", [], "weight"))
    template = resources.files("fedsolve.report").joinpath("page.html").read_text(encoding="utf-8")
    parts = {
        "TITLE": html.escape(_title(runs)),
        "SUMMARY": _summary(found, alone),
        "FACTS": _facts(runs),
        "PLOTS": "\n".join(plots),
        "TABLE": _table(runs),
        "FOOT": f"Written {datetime.now(UTC):%Y-%m-%d %H:%M} UTC from {len(runs)} runs; nothing was computed again.",
    }
    for name, value in parts.items():
        template = template.replace(f"<!-- {name} -->", value)
    return template


def _sent(group: Group) -> float | None:
    up, down = group.mean("bytes", "up"), group.mean("bytes", "down")
    return None if up is None or down is None else up + down


def _title(runs: Sequence[Entry]) -> str:
    names = sorted({str(run.found["data"]["name"]) for run in runs if not run.failure})
    return f"fedsolve on {', '.join(names)}" if names else "fedsolve: no run succeeded"


def _facts(runs: Sequence[Entry]) -> str:
    """What the runs have in common."""
    shown = []
    for name in ("clients", "partition", "features", "test", "participation"):
        values = sorted({str(run.found["settings"].get(name)) for run in runs if not run.failure} - {"None"})
        if values and values != ["1.0"] and values != ["identity"]:
            shown.append(f"<li><b>{name}</b> {html.escape(', '.join(values))}</li>")
    seeds = sorted({run.seed for run in runs})
    return "".join([*shown, f"<li><b>seeds</b> {', '.join(map(str, seeds))}</li>"])


def _summary(found: Sequence[Group], alone: Mapping[int, Mapping[str, float]]) -> str:
    """The outcome in a sentence or two."""
    scored = [(group, group.each("accuracy", "mean")) for group in found]
    scored = [(group, means) for group, means in scored if means]
    if not scored:
        return "No run has figures to show."
    best, means = scored[0]
    middle = 100 * statistics.fmean(means)
    text = f"<b>{html.escape(best.name)}</b> is the most accurate: {middle:.1f} % on average over clients"
    if len(means) > 1:
        text += f" ({100 * min(means):.1f} to {100 * max(means):.1f} over {len(means)} seeds)"
    values = gains(best, alone)
    if values and not best.name.startswith("local"):
        text += f"; {sum(value > 0 for value in values.values())} of {len(values)} clients gain against training alone"
        text += f", {sum(value < 0 for value in values.values())} lose"
    least = min((group for group, _ in scored if _sent(group)), key=lambda group: _sent(group) or 0.0, default=None)
    if least is not None and least is not best:
        text += f". {html.escape(least.name)} sends least: {_size(_sent(least) or 0.0)}"
    return text + "."


def _split(runs: Sequence[Entry]) -> str:
    for run in runs:
        counts = run.found.get("data", {}).get("split")
        if counts:
            names = sorted(counts)
            return _heat(np.array([counts[name] for name in names]), "class", "client", names, "samples")
    return ""


_COLUMNS = (
    "method", "seed", "mean %", "pooled %", "std", "worst tenth %", "rounds", "up", "down", "seconds", "command",
)  # fmt: skip


def _table(runs: Sequence[Entry]) -> str:
    """Every run in a row. A cell's data-value is what it is sorted by."""
    lines = []
    for run in sorted(runs, key=lambda run: (run.method, run.seed)):
        if run.failure:
            cells = [_cell(run.method), _cell(run.seed)]
            lines.append(
                f'<tr class="failed">{"".join(cells)}<td colspan="9">failed: {html.escape(run.failure)}</td></tr>'
            )
            continue
        found, accuracy = run.found, run.found["accuracy"]
        cells = [_cell(run.method), _cell(run.seed)]
        for name in ("mean", "pooled", "std", "worst_decile"):
            value = accuracy[name]
            cells.append(_cell("-" if value is None else f"{100 * value:.2f}", -1.0 if value is None else value))
        cells.append(_cell(found["rounds"]))
        cells += [_cell(_size(found["bytes"][way]), found["bytes"][way]) for way in ("up", "down")]
        cells.append(_cell(f"{found['seconds']['total']:.2f}", found["seconds"]["total"]))
        cells.append(
            f'<td><button class="copy">copy</button><code>{html.escape(command(found["settings"]))}</code></td>'
        )
        lines.append(f"<tr>{''.join(cells)}</tr>")
    heads = "".join(f'<th><button class="sort">{name}</button></th>' for name in _COLUMNS[:-1]) + "<th>command</th>"
    return f"<table><thead><tr>{heads}</tr></thead><tbody>{''.join(lines)}</tbody></table>"


def _cell(text: object, value: object = None) -> str:
    shown = html.escape(str(text))
    return f'<td data-value="{html.escape(str(value if value is not None else text))}">{shown}</td>'


def _size(count: float) -> str:
    unit = "bytes"
    for unit in ("bytes", "KB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            break
        count /= 1000
    return f"{count:.3g} {unit}" if count < 1000 else f"{count:.0f} {unit}"


def _duration(seconds: float) -> str:
    return f"{seconds:.2g} s" if seconds < 100 else f"{seconds / 60:.3g} min"
