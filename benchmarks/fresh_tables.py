"""The tables of `fresh` as docs/results.md has them, from benchmarks/results/fresh.jsonl and nothing else.

    python -m benchmarks.fresh_tables [PICTURE.svg]

prints them, and draws mean ranks with the critical difference. A test compares the page with what this prints.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedsolve.study.paired import Difference, Ranks, difference, holm, ranks

from .fresh import LINEAR, METHODS, STREAMS, Line, lines
from .fresh_data import SETTINGS, Setting

OURS = "fedprior"
LAST = -1e9  # the figure of a method that refuses
AUTO = {"fedhip": ("alpha", LINEAR), "afl": ("ridge", LINEAR), "apfl": ("gamma, beta, lam", STREAMS)}


class Measured:
    """Figures of all settings with every split done; larger ones are better, in percent."""

    def __init__(self, found: Iterable[Line]):
        self._lines = {(line["setting"], line["seed"], line["run"]): line for line in found}
        self._leads: dict[tuple[str, str], Difference] = {}
        self.settings = [s for s in SETTINGS if all(self._has(s, name) for name in (*METHODS, LINEAR))]

    def _has(self, setting: Setting, run: str) -> bool:
        return all((setting.name, seed, run) in self._lines for seed in setting.seeds)

    def has(self, setting: Setting, run: str) -> bool:
        """Whether a method has a figure on every split."""
        return self._has(setting, run) and not any("refused" in line for line in self._of(setting, run))

    def _of(self, setting: Setting, run: str) -> list[Line]:
        return [self._lines[setting.name, seed, run] for seed in setting.seeds]

    def sign(self, setting: Setting) -> float:
        """Accuracies are better the larger they are, errors the smaller."""
        return 100.0 if setting.kind == "classes" else -100.0

    def figure(self, setting: Setting, run: str, name: str = "figure") -> float:
        """The mean over splits, in the direction in which larger is better."""
        if not self.has(setting, run):
            return LAST
        sign = -1.0 if name == "log_loss" else self.sign(setting)
        return round(
            sign * float(np.mean([line[name] for line in self._of(setting, run)])), 6
        )  # rounding must not rank

    def lead(self, setting: Setting, method: str) -> Difference:
        """How far fedprior is ahead of another method on a setting, over clients and splits; computed once."""
        key = setting.name, method
        if key not in self._leads:
            self._leads[key] = difference(self.clients(setting, OURS), self.clients(setting, method))
        return self._leads[key]

    def clients(self, setting: Setting, run: str) -> dict[int, dict[str, float]]:
        """The figures of clients by split, larger ones better."""
        return {
            line["seed"]: {str(place): self.sign(setting) * value for place, value in enumerate(line["clients"])}
            for line in self._of(setting, run)
        }

    def best_fixed(self, setting: Setting, method: str) -> tuple[str, float]:
        """The fixed setting with the best mean over splits, picked on the test samples, and that mean."""
        grids = [line["grids"][method] for line in self._of(setting, AUTO[method][1])]
        means = {key: self.sign(setting) * float(np.mean([grid[key] for grid in grids])) for key in grids[0]}
        best = max(means, key=lambda key: means[key])
        return best, means[best]

    def of(self, which: str) -> list[Setting]:
        return [setting for setting in self.settings if setting.kind == which]


# --- ranks ---


def analyses(found: Measured) -> dict[str, Ranks]:
    """Mean ranks over all settings, which is the claim; then what is beside it."""
    classes, numbers = found.of("classes"), found.of("numbers")
    rest = [setting for setting in found.settings if setting.source != "pacs"]

    def of(settings: Sequence[Setting], name: str = "figure") -> Ranks:
        return ranks([{method: found.figure(s, method, name) for method in METHODS} for s in settings])

    return {
        "**all settings**": of(found.settings),
        "classes, accuracy": of(classes),
        "classes, log-loss": of(classes, "log_loss"),
        "numbers": of(numbers),
        "without PACS": of(rest),
        "each data set once": once(found),
    }


def once(found: Measured) -> Ranks:
    """Ranks over data sets: a method's figure on one is the mean of its ranks over the settings of the set."""
    from scipy.stats import rankdata

    tables = []
    for source in dict.fromkeys(setting.source for setting in found.settings):
        own = [setting for setting in found.settings if setting.source == source]
        placed = rankdata([[-found.figure(s, method) for method in METHODS] for s in own], axis=1).mean(axis=0)
        tables.append(dict(zip(METHODS, placed.tolist(), strict=True)))
    return ranks(tables, larger=False)


def versus(found: Measured, other: str, settings: Sequence[Setting]) -> Difference:
    """How far fedprior is ahead of another method over settings, in points; settings are drawn again."""
    both = [{0: {s.name: found.figure(s, method) for s in settings}} for method in (OURS, other)]
    return difference(*both)


def loss(found: Measured, method: str, settings: Sequence[Setting]) -> Difference:
    """The best fixed setting less auto, over settings, in points."""
    best = {0: {s.name: found.best_fixed(s, method)[1] for s in settings}}
    return difference(best, {0: {s.name: found.figure(s, method) for s in settings}})


# --- tables ---


def markdown(heads: Sequence[str], body: Iterable[Sequence[str]]) -> str:
    table = [f"| {' | '.join(row)} |".replace("|  ", "| ") for row in (heads, *body)]
    table.insert(1, "|---" * len(heads) + "|")
    return "".join(f"{line}\n" for line in table)


def shown(value: float) -> str:
    return "" if value == LAST else f"{abs(value):.2f}"


def signed(each: Difference) -> str:
    return f"{each.mean:+.2f} ({each.low:+.2f} to {each.high:+.2f})"


def chance(p: float) -> str:
    return "< 0.001" if p < 0.001 else f"{p:.3f}"


def rows_of_settings(found: Measured) -> list[dict[str, Any]]:
    """A row a setting: figures of all methods, the best in bold, and how far ours is ahead of the best other."""
    rows = []
    for setting in found.settings:
        figures = {method: found.figure(setting, method) for method in METHODS}
        best = max(figures.values())
        row: dict[str, Any] = {"setting": setting.name, "owners": setting.owners, "splits": str(setting.splits)}
        for method, value in figures.items():
            text = shown(value)
            row[method] = f"**{text}**" if value == best else text
        other = max((method for method in METHODS if method != OURS), key=lambda method: figures[method])
        row[f"{OURS} over the best other"] = f"{signed(found.lead(setting, other))}, {other}"
        for method in ("glm", "mixed"):
            row[method] = shown(found.figure(setting, method))
        rows.append(row)
    return rows


def settings_table(found: Measured, which: str) -> str:
    names = {setting.name for setting in found.of(which)}
    rows = [row for row in rows_of_settings(found) if row["setting"] in names]
    heads = [head for head in rows[0] if head != "mixed" or which == "numbers"]
    return markdown(heads, ([row[head] for head in heads] for row in rows))


def losses_table(found: Measured) -> str:
    """Log-loss of classes."""
    body = []
    for setting in found.of("classes"):
        figures = {method: found.figure(setting, method, "log_loss") for method in METHODS}
        texts = {method: f"{-value:.3f}" for method, value in figures.items()}
        best = max(figures.values())
        body.append([setting.name, *(f"**{texts[m]}**" if figures[m] == best else texts[m] for m in METHODS)])
    return markdown(["log-loss", *METHODS], body)


def ranks_table(found: Measured) -> str:
    body = []
    for name, each in analyses(found).items():
        best = min(each.means.values())
        means = [f"**{each.means[m]:.2f}**" if each.means[m] == best else f"{each.means[m]:.2f}" for m in METHODS]
        alike = "; ".join(", ".join(group) for group in each.alike()) or "none"
        body.append([name, str(each.sets), *means, f"{each.critical:.2f}", chance(each.p), alike])
    return markdown(["mean rank over", "sets", *METHODS, "critical difference", "Friedman's p", "not told apart"], body)


def duels_table(found: Measured) -> str:
    """fedprior against each other method: settings won and lost, clearly so, and by how much."""
    over = {
        which: holm({m: versus(found, m, found.of(which)) for m in METHODS if m != OURS})
        for which in ("classes", "numbers")
    }
    body = []
    for method in METHODS:
        if method == OURS:
            continue
        each = {s.name: found.lead(s, method) for s in found.settings}
        wins = [sum(d.mean > 0 for d in each.values()), sum(d.low > 0 for d in each.values())]
        lost = [sum(d.mean < 0 for d in each.values()), sum(d.high < 0 for d in each.values())]
        row = [method, *(f"{all_} ({clear})" for all_, clear in (wins, lost))]
        for which in ("classes", "numbers"):
            row.append(f"{signed(over[which][method])}, p {chance(over[which][method].adjusted)}")
        body.append(row)
    heads = [f"{OURS} against", "better in (clearly)", "worse in (clearly)", "classes, points", "numbers, points"]
    return markdown(heads, body)


def auto_table(found: Measured) -> str:
    """Mean loss of auto, where it loses most, and in how many settings it is above the best fixed one."""
    body = []
    for method, (what, run) in AUTO.items():
        for which in ("classes", "numbers"):
            settings = [setting for setting in found.of(which) if found._has(setting, run)]
            if not settings:
                continue
            each = {s.name: found.best_fixed(s, method)[1] - found.figure(s, method) for s in settings}
            worst = max(each, key=lambda name: each[name])
            above = sum(value <= 0 for value in each.values())
            mean = loss(found, method, settings)
            cells = [f"{method}, {what}", which, str(len(settings))]
            cells.append(f"{mean.mean:.2f} ({mean.low:.2f} to {mean.high:.2f})")
            body.append([*cells, f"{np.median(list(each.values())):.2f}", f"{each[worst]:.2f}, {worst}", str(above)])
    heads = ["auto of", "target", "settings", "mean loss (95 %)", "median", "largest", "no loss in"]
    return markdown(heads, body)


def auto_settings_table(found: Measured) -> str:
    """For each setting what auto has, what the best fixed setting has, and which that is."""
    body = []
    for setting in found.settings:
        row = [setting.name]
        for method, (_, run) in AUTO.items():
            if not found._has(setting, run):
                row += ["", ""]
                continue
            key, best = found.best_fixed(setting, method)
            row += [f"{abs(found.figure(setting, method)):.2f}", f"{abs(best):.2f} ({_short(key)})"]
        body.append(row)
    return markdown(["setting", *(f"{m}{w}" for m in AUTO for w in (" auto", " best fixed"))], body)


def _short(key: str) -> str:
    """A point of a grid by its numbers alone.

    >>> _short("gamma=1 d_refine=1024 beta=10 lam=0.5"), _short("alpha=5")
    ('1, 10, 0.5', '5')
    """
    return ", ".join(part.partition("=")[2] for part in key.split() if not part.startswith("d_refine"))


def tables(measured: Iterable[Line]) -> dict[str, str]:
    """All tables by name, as Markdown."""
    found = Measured(measured)
    return {
        "ranks": ranks_table(found),
        "duels": duels_table(found),
        "classes": settings_table(found, "classes"),
        "numbers": settings_table(found, "numbers"),
        "log-loss": losses_table(found),
        "auto": auto_table(found),
        "auto by setting": auto_settings_table(found),
    }


def picture(each: Ranks, path: Path) -> None:
    """Mean ranks on a line, and bars over methods that cannot be told apart."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams |= {"svg.hashsalt": "fedsolve", "font.size": 10}
    from matplotlib import pyplot

    order = sorted(each.means, key=lambda name: each.means[name])
    figure, axes = pyplot.subplots(figsize=(7.0, 2.3))
    axes.set(xlim=(0.8, len(order) + 0.2), ylim=(-1.3, 0.75))
    axes.axis("off")
    axes.hlines(0, 1, len(order), color="black", linewidth=1)
    for tick in range(1, len(order) + 1):
        axes.vlines(tick, 0, 0.06, color="black", linewidth=1)
        axes.text(tick, 0.1, str(tick), ha="center", va="bottom")
    half = (len(order) + 1) // 2
    for place, name in enumerate(order):
        left = place < half
        depth = -0.55 - 0.25 * (place if left else len(order) - 1 - place)
        end, mean = (0.95 if left else len(order) + 0.05), each.means[name]
        axes.plot([mean, mean, end], [0, depth, depth], color="#555555", linewidth=1)
        label = f"{name}  {mean:.2f}" if left else f"{mean:.2f}  {name}"
        weight = "bold" if name == OURS else "normal"
        at = 1.0 if left else len(order)
        axes.text(at, depth + 0.03, label, ha="left" if left else "right", va="bottom", weight=weight)
    for level, group in enumerate(each.alike()):
        ends = [each.means[name] for name in group]
        axes.hlines(-0.12 - 0.1 * level, min(ends) - 0.04, max(ends) + 0.04, color="#d95f02", linewidth=4)
    axes.hlines(0.5, 1, 1 + each.critical, color="#d95f02", linewidth=2)
    axes.text(1 + each.critical + 0.05, 0.5, f"critical difference {each.critical:.2f}", va="center")
    figure.savefig(path, format="svg", bbox_inches="tight", metadata={"Date": None, "Creator": None})
    pyplot.close(figure)


def main(words: Sequence[str]) -> None:
    measured = lines()
    for name, text in tables(measured).items():
        print(f"{name}\n\n{text}")
    if words:
        picture(next(iter(analyses(Measured(measured)).values())), Path(words[0]))


if __name__ == "__main__":
    main(sys.argv[1:])
