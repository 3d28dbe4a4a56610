"""Plot every client's accuracy: alone, with the one global model, and with its personal model.

    fedsolve run --out runs/demo
    python examples/plot_gain.py runs/demo docs/digits.svg

Needs matplotlib: pip install "fedsolve[report]".
"""

from __future__ import annotations

import sys

import matplotlib

import fedsolve as fs

matplotlib.use("Agg")
matplotlib.rcParams["svg.hashsalt"] = "fedsolve"  # the same file for the same figures
from matplotlib import pyplot as plt  # noqa: E402

LOOKS = (  # Okabe-Ito colours: told apart by everybody
    ("alone", "alone", "#8c8c8c", "o"),
    ("shared", "one global model", "#0072b2", "s"),
    ("accuracy", "personal model", "#e69f00", "D"),
)


def main(folder: str, target: str) -> None:
    result = fs.Result.load(folder)
    clients = sorted(result.clients.items(), key=lambda item: (item[1].shared or 0.0, item[1].alone or 0.0))
    figure, axes = plt.subplots(figsize=(9, 3.6), layout="constrained")
    for place, (_, client) in enumerate(clients):
        values = [100 * value for value in (client.alone, client.shared, client.accuracy) if value is not None]
        axes.plot([place, place], [min(values), max(values)], color="#d9d9d9", linewidth=2, zorder=1)
    for number, (field, label, colour, marker) in enumerate(LOOKS):
        values = [100 * (getattr(client, field) or 0.0) for _, client in clients]
        mean = sum(values) / len(values)
        places = [place + 0.22 * (number - 1) for place in range(len(values))]
        axes.scatter(
            places, values, s=34, color=colour, marker=marker, zorder=2 + number, label=f"{label}: mean {mean:.1f} %"
        )
    axes.set_xticks(range(len(clients)), [name.removeprefix("client-") for name, _ in clients])
    axes.set_xlabel("client")
    axes.set_ylabel("accuracy on its own test data, %")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#eeeeee")
    axes.set_axisbelow(True)
    axes.legend(loc="lower right", frameon=False)
    figure.savefig(target, metadata={"Date": None})


if __name__ == "__main__":
    main(*sys.argv[1:])
