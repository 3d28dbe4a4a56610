"""One self-contained page from results on disk: figures to look at first, every number in a table behind them.

`runfile` reads the runs, `gather` says what belongs together, `plots` and `answers` draw, and `page` puts it together;
`figures` writes the same as files for papers. Nothing is computed again.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fedsolve import disk
from fedsolve.errors import DataError, ParameterError
from fedsolve.metrics import words
from fedsolve.report import figures
from fedsolve.report.differences import sentences, to_csv, to_latex
from fedsolve.report.gather import Group, Section, gains, groups, per_client, sections
from fedsolve.report.page import render
from fedsolve.report.plots import STYLE
from fedsolve.report.runfile import RunFile, entries
from fedsolve.study.compare import FAILURE

__all__ = [
    "FAILURE",
    "Group",
    "RunFile",
    "Section",
    "check",
    "entries",
    "figures",
    "gains",
    "groups",
    "per_client",
    "render",
    "sections",
    "sentences",
    "to_csv",
    "to_latex",
    "write",
]  # fmt: skip

ENDINGS = (".html", ".htm")


def check() -> None:
    """Refuse where no page can be drawn; a comparison asks before it runs anything."""
    try:
        import matplotlib  # noqa: F401  (whether it is there is the question)
    except ImportError as error:
        raise DataError("a report needs matplotlib: pip install 'fedsolve[report]'") from error


def write(folders: Sequence[Path], out: Path, metric: str | None = None) -> Path:
    """Write the page for the runs in `folders`, and below them, to the file `out`.

    Runs are compared by `metric`, where they have it; by default each by its own, accuracy or rmse.

    >>> write([Path("runs")], Path("figures.csv"))
    Traceback (most recent call last):
    fedsolve.errors.ParameterError: a report is an HTML page, so its file must end in .html; got 'figures.csv': name \
figures.html
    """
    if out.suffix.lower() not in ENDINGS:
        other = Path(out.name or "report").with_suffix(".html")
        raise ParameterError(
            f"a report is an HTML page, so its file must end in .html; got {str(out)!r}: name {out.parent / other}"
        )
    disk.check_file(out)
    check()
    import matplotlib

    if metric is not None:
        words.check(metric)
    runs = entries(folders)
    if metric is not None:
        _check_metric(metric, runs)
    with matplotlib.rc_context(STYLE):
        text = render(runs, metric or "")
    out.parent.mkdir(parents=True, exist_ok=True)
    disk.write_bytes(out, text.encode(), public=True)  # made to be handed on
    return out


def _check_metric(metric: str, runs: Sequence[RunFile]) -> None:
    """Refuse a metric that none of the runs has."""
    succeeded = [run for run in runs if not run.failure]
    kinds = {str(run.task.get("kind", "classes")) for run in succeeded}
    if len(kinds) == 1:
        words.check(metric, *kinds)
    had = sorted({name for run in succeeded for name in (*run.metrics(), "accuracy") if run.figures("own", name)})
    if succeeded and metric not in had:
        raise DataError(f"no run has the metric {metric!r}; they have {', '.join(had) or 'none'}: name another")
