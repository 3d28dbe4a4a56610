"""What runs say of their columns: the summary of each statistical model, as `fedsolve summary` shows it."""

from __future__ import annotations

import html
from collections.abc import Sequence

from fedsolve.errors import FedsolveError
from fedsolve.report.gather import Section
from fedsolve.report.tables import titled
from fedsolve.study.summary import summary_of

METHODS = ("glm", "mixed")  # whose coefficients are what they are run for
MOST = 200  # rows of a summary; a longer one is for the terminal


def tables(parts: Sequence[Section]) -> str:
    """One section for each group of runs by a statistical model, of its first seed; nothing where there is none."""
    found = []
    for part in parts:
        for group in part.groups:
            run = group.runs[0]
            if group.method not in METHODS:
                continue
            try:
                summary = summary_of(run.place)
            except FedsolveError:  # a run without a global model, or of other versions
                continue
            if len(summary.rows) <= MOST:
                where = "" if len(parts) == 1 else f", {html.escape(part.name)}"
                words = f"The global model of {html.escape(group.name)}{where}, seed {run.seed}, in units of the table."
                text = f'<pre style="white-space: pre-wrap; margin: 0.8em">{html.escape(str(summary))}</pre>'
                found.append(titled(f"Coefficients of {html.escape(group.name)}", words, text))
    return "\n".join(found)
