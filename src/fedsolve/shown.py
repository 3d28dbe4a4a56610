"""Figures of clients as a notebook shows them, and as a data frame."""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from fedsolve.errors import FedsolveError
from fedsolve.metrics import words
from fedsolve.records import ClientResult, Spread, Whose

if TYPE_CHECKING:
    import pandas

SHOWN = 30  # clients in a table of a notebook
COLUMNS: tuple[tuple[Whose, str], ...] = (("personal", ""), ("alone", "alone"), ("shared", "global"))


def gathered(privacy: Mapping[str, Any]) -> str:
    """What was secure about a run, in a sentence; nothing where the server saw every reply.

    >>> gathered({"secure": True, "quorum": 3})[:65]
    'secure sums: the server saw sums over at least 3 clients, and no '
    """
    if not privacy.get("secure"):
        return ""
    return (
        f"secure sums: the server saw sums over at least {privacy.get('quorum')} clients, and no client's part; "
        "figures are of all test samples together, and those of each client stay with it"
    )


def notebook_table(
    method: str, clients: Mapping[str, ClientResult], metric: str, over: Spread, constant: float | None
) -> str:
    """A metric over clients, in a sentence, and then per client, the worst first; `constant` is the best constant's."""
    own = {name: client.metrics.get(metric) for name, client in clients.items()}
    columns = [column for column in COLUMNS if any(metric in client.of(column[0]) for client in clients.values())]
    heads = "".join(f"<th>{html.escape(title or words.title(metric))}</th>" for _, title in columns)
    lines = []
    for name in words.worst_first(metric, own)[:SHOWN]:
        client = clients[name]
        values = [client.of(whose).get(metric) for whose, _ in columns]
        cells = "".join(f"<td>{words.text(metric, value)}</td>" for value in values)
        sizes = "".join(f"<td>{'' if size is None else size}</td>" for size in (client.train, client.test))
        lines.append(f"<tr><td>{html.escape(name)}</td>{sizes}{cells}</tr>")
    mean, pooled, worst = (words.text(metric, value) for value in (over.mean, over.pooled, over.worst_decile))
    beside = "" if constant is None else f"; best constant answer {words.text(metric, constant)}"
    left = len(clients) - len(lines)
    return (
        f"<p><b>{html.escape(method)}</b>: {words.title(metric)} {mean} over {len(clients)} clients, "
        f"{pooled} of all test samples, worst tenth {worst}{beside}</p>"
        f"<table><tr><th>client</th><th>train</th><th>test</th>{heads}</tr>{''.join(lines)}</table>"
        + (f"<p>and {left} more</p>" if left > 0 else "")
    )


def frame(clients: Mapping[str, ClientResult], metrics: Iterable[str]) -> pandas.DataFrame:
    """One row per client: samples, the metrics of its model, and those of other models behind their names."""
    try:
        import pandas
    except ImportError as error:
        raise FedsolveError("a data frame of a result needs pandas: pip install pandas") from error
    names = list(metrics)
    columns: dict[str, list[float | None]] = {
        part: [getattr(client, part) for client in clients.values()] for part in ("train", "test")
    }
    for whose, title in COLUMNS:
        for name in names:
            values = [client.of(whose).get(name) for client in clients.values()]
            if whose == "personal" or any(value is not None for value in values):
                columns[f"{title}_{name}".strip("_")] = values
    return pandas.DataFrame(columns, index=pandas.Index(list(clients), name="client"))
