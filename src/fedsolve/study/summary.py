"""Summaries of what is on disk: of a run's global model, or of one model."""

from __future__ import annotations

import csv
import io
from pathlib import Path

from fedsolve import disk
from fedsolve.method import Method
from fedsolve.model import load_model
from fedsolve.result import Result
from fedsolve.summary import Summary


def summary_of(path: Path, kind: type[Method] | None = None) -> Summary:
    """The summary of the run in a folder, or of the model in a file; `kind` is the class of a method of one's own."""
    return Result.load(path, kind).summary() if Path(path).is_dir() else load_model(path, kind).summary()


def write_csv(summary: Summary, path: Path) -> None:
    """One line per coefficient; what is not known is empty."""
    columns = summary.columns()
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(zip(*columns.values(), strict=True))
    disk.write_bytes(Path(path), text.getvalue().encode())
