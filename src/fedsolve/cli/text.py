"""Figures, as they are printed."""

from __future__ import annotations

from typing import Any

ROWS = 30  # clients shown in a table; the rest is in result.json


def gain(metric: str, mine: float | None, other: float | None) -> str:
    """How much better a figure is than another, in the metric's unit, in colour."""
    from fedsolve.metrics import words

    if mine is None or other is None:
        return ""
    colour = {1: "green", -1: "red", 0: "dim"}[words.verdict(metric, mine, other)]
    return f"[{colour}]{words.gain_text(metric, words.gain(metric, mine, other))}[/{colour}]"


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


def run_line(method: str, seed: int, reply: Any, done: int, total: int, metric: str | None = None) -> str:
    """That a run of several is over, and what came out: its result.json, or why it failed.

    The figure shown is the one asked for by `metric`, or by the run itself, or the main one of its kind of target.
    """
    outcome = f"failed: {reply}" if isinstance(reply, str) else _in_short(reply, metric)
    told = [] if isinstance(reply, str) else [f"warning: {sentence}" for sentence in reply.get("warnings", [])]
    return "\n".join([f"{done:>{len(str(total))}} of {total}  {method:<12} seed {seed}  {outcome}", *told])


def _in_short(reply: Any, asked: str | None) -> str:
    from fedsolve.metrics import words

    metric = words.main(reply.get("task", {}), asked or reply.get("settings", {}).get("metric"))
    figures = reply["accuracy"] if metric == "accuracy" else reply["metrics"].get(metric, {})
    mean, pooled, worst = (words.text(metric, figures.get(part)) for part in ("mean", "pooled", "worst_decile"))
    sent = reply["bytes"]["up"] + reply["bytes"]["down"]
    name = "" if metric == "accuracy" else f"{words.title(metric)} "
    seconds = f"{reply['seconds']['total']:.1f} s"
    if reply.get("settings", {}).get("devices") is not None:
        seconds = f"{sum(line['seconds'] for line in reply['history']):.1f} s emulated"
    return f"{name}mean {mean}  pooled {pooled}  worst tenth {worst}  {size(sent)}  {seconds}"
