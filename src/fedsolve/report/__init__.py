"""One self-contained page from results on disk: figures to look at first, every number in a table behind them.

`gather` reads the runs, `plots` draws them, `page` puts the page together; nothing is computed again.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fedsolve import disk
from fedsolve.errors import DataError, ParameterError
from fedsolve.report.gather import Group, RunFile, Section, entries, gains, groups, per_client, sections
from fedsolve.report.page import render
from fedsolve.report.plots import STYLE
from fedsolve.study.compare import FAILURE

__all__ = [
    "FAILURE",
    "Group",
    "RunFile",
    "Section",
    "check",
    "entries",
    "gains",
    "groups",
    "per_client",
    "render",
    "sections",
    "write",
]  # fmt: skip

ENDINGS = (".html", ".htm")


def check() -> None:
    """Refuse where no page can be drawn; a comparison asks before it runs anything."""
    try:
        import matplotlib  # noqa: F401  (whether it is there is the question)
    except ImportError as error:
        raise DataError("a report needs matplotlib: pip install 'fedsolve[report]'") from error


def write(folders: Sequence[Path], out: Path) -> Path:
    """Write the page for the runs in `folders`, and below them, to the file `out`.

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

    with matplotlib.rc_context(STYLE):
        text = render(entries(folders))
    out.parent.mkdir(parents=True, exist_ok=True)
    disk.write_bytes(out, text.encode(), public=True)  # made to be handed on
    return out
