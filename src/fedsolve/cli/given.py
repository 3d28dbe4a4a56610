"""What was given on the command line, as values."""

from __future__ import annotations

from pathlib import Path

from fedsolve.errors import DataError, ParameterError


def share_of(text: str | None) -> float | str | None:
    """A share of the samples as a number; any other word as it is."""
    if text is None:
        return None
    try:
        return float(text)
    except ValueError:
        return text


def check_place(out: Path | None) -> None:
    """Refuse a place for results that holds something else."""
    from fedsolve.result import replaceable

    if out is not None and out.exists() and not replaceable(out):
        raise DataError(f"{out} exists and is not a result of fedsolve; name another place with --out")


def assignments(texts: list[str]) -> dict[str, str]:
    """Parameters by name, from NAME=VALUE; their values are still texts."""
    found: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise ParameterError(f"--set takes NAME=VALUE, as in --set alpha=20; got {text!r}")
        found[name.strip()] = value
    return found


def integers(text: str, name: str) -> list[int]:
    """Whole numbers, from a list with commas."""
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise ParameterError(f"{name} are whole numbers separated by commas; got {text!r}") from None
