"""The picture of a disclosure: a site's rows, and what the sums that it would send give back of them."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedsolve import disk
from fedsolve.errors import ParameterError

if TYPE_CHECKING:
    from fedsolve.study.disclosure import Demonstration

MOST = 12  # rows that are drawn as pictures


def draw(shown: Demonstration, path: Path) -> None:
    """Write an SVG file, for its owner alone: it shows records. Rows are pictures where they can be, else lines."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ParameterError("a picture needs matplotlib: pip install 'fedsolve[report]'") from error
    if path.suffix.lower() != ".svg":
        raise ParameterError(f"a picture of a disclosure is an .svg file; got {str(path)!r}")
    both = {"the site's rows": shown.rows, "found in its sums": shown.found}
    low, high = float(shown.rows.min()), float(shown.rows.max())
    if shown.pictures:
        count = min(MOST, len(shown.rows))
        figure = Figure(figsize=(0.8 * count, 2.2))
        for line, (title, rows) in enumerate(both.items()):
            for place in range(count):
                axes = figure.add_subplot(2, count, line * count + place + 1)
                axes.imshow(rows[place].reshape(shown.pictures), cmap="gray_r", vmin=low, vmax=high)
                axes.set_axis_off()
                if place == 0:
                    axes.set_title(title, fontsize=8, loc="left")
    else:
        figure = Figure(figsize=(8.0, 1.0 + 0.1 * len(shown.rows)))
        for line, (title, rows) in enumerate(both.items()):
            axes = figure.add_subplot(1, 2, line + 1)
            axes.imshow(np.asarray(rows), aspect="auto", cmap="gray_r", vmin=low, vmax=high)
            axes.set(title=title, xlabel="feature", ylabel="row" if not line else "")
    buffer = io.BytesIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    disk.write_bytes(path, buffer.getvalue())
