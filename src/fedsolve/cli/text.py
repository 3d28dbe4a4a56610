"""Figures, as they are printed."""

from __future__ import annotations

from typing import Any

ROWS = 30  # clients shown in a table; the rest is in result.json


def percent(share: float | None) -> str:
    """A share in percent, and a dash where there is none."""
    return "-" if share is None else f"{100 * share:.1f} %"


def gain(mine: float | None, other: float | None) -> str:
    """How many points better, in colour."""
    if mine is None or other is None:
        return ""
    points = 100 * (mine - other)
    colour = "green" if points > 0.05 else "red" if points < -0.05 else "dim"
    return f"[{colour}]{points:+.1f}[/{colour}]"


def size(count: int) -> str:
    """A number of bytes, in the unit that keeps it short."""
    size = float(count)
    for unit in ("bytes", "KB", "MB", "GB"):
        if size < 1000 or unit == "GB":
            break
        size /= 1000
    return f"{size:.0f} {unit}" if unit == "bytes" else f"{size:.1f} {unit}"


def duration(seconds: float) -> str:
    """A number of seconds, in minutes from two of them on."""
    return f"{seconds / 60:.0f} min" if seconds >= 120 else f"{seconds:.0f} s"


def run_line(method: str, seed: int, reply: Any, done: int, total: int) -> str:
    """That a run of several is over, and what came out: its result.json, or why it failed."""
    outcome = f"failed: {reply}" if isinstance(reply, str) else _in_short(reply)
    told = [] if isinstance(reply, str) else [f"warning: {sentence}" for sentence in reply.get("warnings", [])]
    return "\n".join([f"{done:>{len(str(total))}} of {total}  {method:<12} seed {seed}  {outcome}", *told])


def _in_short(reply: Any) -> str:
    accuracy = reply["accuracy"]
    sent = reply["bytes"]["up"] + reply["bytes"]["down"]
    return (
        f"mean {percent(accuracy['mean'])}  pooled {percent(accuracy['pooled'])}  worst tenth "
        f"{percent(accuracy['worst_decile'])}  {size(sent)}  {reply['seconds']['total']:.1f} s"
    )
