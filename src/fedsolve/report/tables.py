"""Tables of the page, which are sorted by a click, and numbers in words."""

from __future__ import annotations

import html
from collections.abc import Sequence

from fedsolve.metrics import words


def whole(name: str, heads: Sequence[str], lines: Sequence[str], last: str = "") -> str:
    """A table of these lines whose columns are sorted by a click on their heads; `last` is one that is not."""
    row = last
    for head in reversed(heads):
        kind = " class=text" if head in ("data", "metric") else ""
        row = f'<th{kind}><button class="sort">{html.escape(head)}</button></th>{row}'
    return f'<table id="{name}"><thead><tr>{row}</tr></thead><tbody>{"".join(lines)}</tbody></table>'


def titled(title: str, told: str, table: str) -> str:
    """A table in a section of its own."""
    return f'<section>\n<h2>{title}</h2>\n<p class="note">{told}</p>\n<div class="scroll">{table}</div>\n</section>'


def figure(metric: str, value: float | None, digits: int = 2, *, unit: bool = False) -> str:
    """A cell with a metric: a share in percent with so many digits, anything else with four; its unit on demand."""
    shown = words.text if unit else words.number
    return cell("-", "") if value is None else cell(shown(metric, value, digits), value)


def cell(content: object, value: object = None, *, text: bool = False) -> str:
    """A cell of a table; its column is sorted by `value`, where that is another than what is shown."""
    key = html.escape(str(content if value is None else value))
    return f'<td{" class=text" if text else ""} data-value="{key}">{html.escape(str(content))}</td>'


# --- numbers in words ---


def count(number: int, noun: str) -> str:
    """A number with its noun.

    >>> count(1, "run"), count(2, "run")
    ('1 run', '2 runs')
    """
    return f"{number} {noun}{'' if number == 1 else 's'}"


def size(number: float) -> str:
    """Bytes in the unit that suits them.

    >>> size(999), size(1_234_567)
    ('999 bytes', '1.23 MB')
    """
    unit = "bytes"
    for unit in ("bytes", "KB", "MB", "GB"):
        if number < 1000 or unit == "GB":
            break
        number /= 1000
    return f"{number:.3g} {unit}" if number < 1000 else f"{number:.0f} {unit}"


def duration(seconds: float) -> str:
    """Seconds, or minutes where they are many.

    >>> duration(1.234), duration(600)
    ('1.2 s', '10 min')
    """
    return f"{seconds:.2g} s" if seconds < 100 else f"{seconds / 60:.3g} min"
