"""How metrics are shown, on a terminal, in a notebook and on a page: names, units, digits, and which way is better.

Shares are shown in percent and their differences in points; everything else as a number with four digits.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from fedsolve.errors import UnknownNameError, unknown
from fedsolve.metrics import KINDS, MAIN, METRICS

_NAMES = {"log_loss": "log-loss", "brier": "Brier score", "macro_f1": "macro F1", "auc": "AUC", "r2": "R2"}
_SEEN = 1e-4  # share of a number below which a difference is not seen in four digits
_POINT = 0.05  # points below which a difference is shown as 0.0
Key = TypeVar("Key")


def check(name: str, kind: str = "") -> str:
    """The name of a metric of this kind of target, or of any; another is refused with those that there are.

    >>> check("rmse", "classes")
    Traceback (most recent call last):
    fedsolve.errors.UnknownNameError: unknown metric of a target that is classes: 'rmse'; known: accuracy, auc, \
balanced_accuracy, brier, log_loss, macro_f1
    """
    known = [metric.name for metric in KINDS[kind]] if kind in KINDS else list(METRICS)
    if name in known:
        return name
    if not kind:
        raise unknown("metric", name, known)
    # No near matches: they would leave out most of the few that there are.
    raise UnknownNameError(f"unknown metric of a target that is {kind}: {name!r}; known: {', '.join(sorted(known))}")


def main(task: Mapping[str, Any], asked: object = None) -> str:
    """The metric that is shown where there is room for one: the one asked for, if the kind of target has it.

    >>> main({"kind": "numbers"}), main({"kind": "classes"}, "auc"), main({})
    ('rmse', 'auc', 'accuracy')
    """
    kind = task.get("kind")
    kind = kind if isinstance(kind, str) and kind in KINDS else "classes"  # format 1 knew nothing else
    return asked if isinstance(asked, str) and asked in {metric.name for metric in KINDS[kind]} else MAIN[kind]


def title(name: str) -> str:
    """What a metric is called.

    >>> title("balanced_accuracy"), title("auc")
    ('balanced accuracy', 'AUC')
    """
    return _NAMES.get(name, name.replace("_", " "))


def heading(name: str) -> str:
    """What a metric is called at the beginning of a line.

    >>> heading("accuracy"), heading("rmse")
    ('Accuracy', 'RMSE')
    """
    return name.upper() if name in ("rmse", "mae") else title(name)[:1].upper() + title(name)[1:]


def label(name: str, of: str = "") -> str:
    """What stands beside an axis or above a column, with the unit.

    >>> label("accuracy"), label("accuracy", "mean"), label("rmse")
    ('accuracy, %', 'mean accuracy, %', 'rmse')
    """
    return f"{of} {title(name)}".strip() + (", %" if is_share(name) else "")


def is_share(name: str) -> bool:
    """Whether a metric is a share, shown in percent."""
    return name in METRICS and METRICS[name].share


def less_is_better(name: str) -> bool:
    """Whether smaller values of a metric are the better ones; greater ones are of metrics that nobody knows."""
    return name in METRICS and METRICS[name].better == "lower"


def scaled(name: str, value: float) -> float:
    """A value in the unit that it is shown in: shares in percent.

    >>> scaled("accuracy", 0.5), scaled("rmse", 0.5)
    (50.0, 0.5)
    """
    return 100 * value if is_share(name) else value


def number(name: str, value: float | None, digits: int = 1) -> str:
    """A value without its unit: percent with so many digits, anything else with four; a dash where there is none.

    >>> number("accuracy", 0.9312), number("rmse", 1.2), number("rmse", 31415.9), number("rmse", None)
    ('93.1', '1.200', '31420', '-')
    """
    if value is None:
        return "-"
    if is_share(name):
        return f"{100 * value:.{digits}f}"
    size = abs(value)
    if size and not 1e-4 <= size < 1e7:
        return f"{value:.3e}"
    return f"{float(f'{value:.4g}'):.0f}" if size >= 1000 else f"{value:#.4g}".rstrip(".")


def text(name: str, value: float | None, digits: int = 1) -> str:
    """A value with its unit.

    >>> text("accuracy", 0.9312), text("rmse", 1.28379), text("accuracy", None)
    ('93.1 %', '1.284', '-')
    """
    return number(name, value, digits) + (" %" if is_share(name) and value is not None else "")


def gain(name: str, mine: float, other: float) -> float:
    """How much better one value is than another, in the unit that it is shown in: above zero where it is better.

    >>> round(gain("accuracy", 0.75, 0.5)), gain("rmse", 1.5, 2.0)
    (25, 0.5)
    """
    difference = scaled(name, mine) - scaled(name, other)
    return -difference if less_is_better(name) else difference


def gain_text(name: str, difference: float) -> str:
    """A gain with its sign: points with one digit, anything else with three digits in all.

    >>> gain_text("accuracy", 2.04), gain_text("rmse", -0.012345)
    ('+2.0', '-0.0123')
    """
    return f"{difference:+.1f}" if is_share(name) else f"{difference:+#.3g}".rstrip(".")


def verdict(name: str, mine: float, other: float) -> int:
    """1 where the first is better, -1 where it is worse, 0 where no difference is to be seen in what is shown.

    >>> verdict("rmse", 1.5, 2.0), verdict("accuracy", 0.5, 0.75), verdict("rmse", 1.5, 1.50001)
    (1, -1, 0)
    """
    least = _POINT if is_share(name) else _SEEN * max(abs(mine), abs(other))
    difference = gain(name, mine, other)
    return 0 if abs(difference) <= least else 1 if difference > 0 else -1


def beyond(name: str) -> str:
    """On which side the better values of a metric are: "over" others, or "under" them.

    >>> beyond("accuracy"), beyond("rmse")
    ('over', 'under')
    """
    return "under" if less_is_better(name) else "over"


def worst_first(name: str, values: Mapping[Key, float | None]) -> list[Key]:
    """The keys of values, the worst first and those without a value last.

    >>> worst_first("rmse", {"a": 1.0, "b": None, "c": 3.0})
    ['c', 'a', 'b']
    """
    return sorted(values, key=lambda key: (values[key] is None, gain(name, values[key] or 0.0, 0.0)))


def best_first(name: str, values: Mapping[Key, float | None]) -> list[Key]:
    """The keys of values, the best first and those without a value last.

    >>> best_first("rmse", {"a": 1.0, "b": None, "c": 3.0})
    ['a', 'c', 'b']
    """
    return sorted(values, key=lambda key: (values[key] is None, -gain(name, values[key] or 0.0, 0.0)))


def predicted(task: Mapping[str, Any], label: str = "") -> str:
    """What a task predicts, in a few words; `label` is the column that the classes come from, where it has a name.

    >>> predicted({"kind": "classes", "count": 2}, "disease"), predicted({"kind": "numbers", "names": ["motor_updrs"]})
    ('`disease` (2 classes)', 'numbers `motor_updrs`')
    """
    if task.get("kind") == "numbers":
        return f"numbers {_some(task.get('names', ()))}"
    classes = f"{task['count']} classes" if "count" in task else "classes"
    return f"`{label}` ({classes})" if label else classes


def _some(names: Iterable[str], most: int = 5) -> str:
    every = [f"`{name}`" for name in names]
    return ", ".join(every[:most]) + (f" and {len(every) - most} more" if len(every) > most else "")
