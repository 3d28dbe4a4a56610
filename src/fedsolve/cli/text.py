"""Figures, as they are printed."""

from __future__ import annotations

from typing import Any

ROWS = 30  # clients shown in a table; the rest is in result.json


def percent(share: float | None) -> str:
    """A share."""
    return "-" if share is None else f"{100 * share:.1f} %"


def gain(mine: float | None, other: float | None) -> str:
    """How many points better, in colour."""
    if mine is None or other is None:
        return ""
    points = 100 * (mine - other)
    colour = "green" if points > 0.05 else "red" if points < -0.05 else "dim"
    return f"[{colour}]{points:+.1f}[/{colour}]"


def size(count: int) -> str:
    """A number of bytes."""
    size = float(count)
    for unit in ("bytes", "KB", "MB", "GB"):
        if size < 1000 or unit == "GB":
            break
        size /= 1000
    return f"{size:.0f} {unit}" if unit == "bytes" else f"{size:.1f} {unit}"


def duration(seconds: float) -> str:
    """A number of seconds."""
    return f"{seconds / 60:.0f} min" if seconds >= 120 else f"{seconds:.0f} s"


def run_line(method: str, seed: int, found: Any, done: int, total: int) -> str:
    """That a run of several is over, and what came out: its result.json, or why it failed."""
    said = f"failed: {found}" if isinstance(found, str) else _in_short(found)
    return f"{done:>{len(str(total))}} of {total}  {method:<12} seed {seed}  {said}"


def _in_short(found: Any) -> str:
    accuracy = found["accuracy"]
    sent = found["bytes"]["up"] + found["bytes"]["down"]
    return (
        f"mean {percent(accuracy['mean'])}  pooled {percent(accuracy['pooled'])}  worst tenth "
        f"{percent(accuracy['worst_decile'])}  {size(sent)}  {found['seconds']['total']:.1f} s"
    )
