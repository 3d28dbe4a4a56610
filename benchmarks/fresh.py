"""What we claim, on data that no choice was made on. This text is the protocol; it was committed before the first run.

The rules behind `auto` (FedHiP's alpha, the ridge of AFL, APFL's gamma, beta and lam) and those of fedprior were picked
while looking at test figures of Fashion-MNIST, CIFAR-100 features, PACS, heart disease, landmine, Parkinson's, the two
sets of schools and digits. So all code of methods is frozen here, and measured once on other data.

**Settings** (`fresh_data.SETTINGS`: 25 of 17 data sets, 16 of classes and 9 of numbers), none of those above but PACS:

- every table of scikit-learn that is not digits and not too small to split (linnerud has 20 rows);
- those tables of statsmodels that have some 200 rows or more and either owners (firm, country, plan, occupation,
  schooling, party, means of transport, month) or enough columns for a question of their own. The column that names the
  owner is no feature. Where a table has no owners, rows are dealt out by Dirichlet over classes, or over tenths of the
  number, 10 to a client at least;
- MNIST through `random:512,relu`, 10,000 images; CIFAR-10 through EfficientNet-Lite0, 6,000 images, with 3,000 of the
  official test images dealt out in the clients' class shares;
- PACS, with new splits, by domain and by Dirichlet 0.5 within each domain. fedprior's grids were picked on other splits
  of the same pictures, so PACS is no fresh data, and ranks are also given without it;
- Shakespeare's roles, a client a role, as two questions that every role's own text answers and whose answers roles give
  in shares and words of their own: which mark (. ? !) ends a sentence, from its words; and which of the ten commonest
  words is missing, from the two before and the two behind it. Tokens and pairs of them are hashed to 512 columns.
  Which role or play speaks would be no question for a federation of roles: each client has one answer.

MNIST and CIFAR-10 images were used to choose settings of layer-wise networks and patches, never for any rule above.

**Splits**: seeds from 100 on, which no earlier figure has: 10 for tables below 1,000 rows, 5 for larger ones and texts,
3 for pictures. A fifth of each client's rows is held out (CIFAR-10: see above). A run has the seed of its split.

**Methods** as they come, nothing set: local, afl, fedhip, apfl, fedprior. Beside them, unranked, on tables: glm, and
mixed where a number is predicted. A method that refuses a data set is last there.

**Figures**. Classes: accuracy, mean over clients; second, log-loss, mean over clients. Numbers: the root mean squared
error, mean over clients, over that of each client's best constant answer (the mean of its training rows), mean over
clients. Both in percent. A setting's figure is the mean over its splits. A difference of two methods has an interval
by drawing clients again within splits (`study/paired.py`); splits share rows, so that it is a little too narrow.

**Ranks** of the five methods over settings, mean ranks, Friedman's test and Nemenyi's critical difference at 5 %
(`study/paired.py`): over all settings by accuracy and error: *this is the claim that is tested*. Beside it: classes
alone, numbers alone, log-loss of classes, without PACS, and each data set once (the mean of a method's ranks over the
settings of the set is then its figure), since settings of one set are not independent.

**Auto against the best fixed setting**. The best fixed setting of a data set and split is picked *on the test samples*,
by its mean over the splits, among the grids of `fresh_grids`: FedHiP's alpha (its paper's 0, 5, ..., 60, and 1, 100,
200, 1000), AFL's ridge (0, 0.01, ..., 1000), and for classes APFL's gamma, beta and lam (75 settings). Everything else
is as it comes. The loss of auto is the best fixed figure less that of auto, in points; its mean over settings has an
interval by drawing settings again. An oracle picks from up to 75 figures with noise, so some loss is its luck.

    python -m benchmarks fresh              # all of it; some ten CPU minutes
    python -m benchmarks.fresh WORD ...     # settings with one of these words in their name
    python -m benchmarks.fresh_tables       # the tables of docs/results.md, from what was measured

$FEDSOLVE_DATA holds mnist.npz, cifar10.npz, pacs-features.npz, federated/shakespeare_roles.json.gz and
backbone/effnetlite0_224.onnx; settings whose file is absent are passed over. A line a run in
benchmarks/results/fresh.jsonl; no run twice; a stopped one goes on where it was.
"""

from __future__ import annotations

import json
import sys
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import fedsolve as fs
from fedsolve.errors import FedsolveError

from .fresh_data import SETTINGS, Setting
from .fresh_grids import apfl_grid, linear_grids

METHODS = ("local", "afl", "fedhip", "apfl", "fedprior")  # that are ranked
BESIDE = {"classes": ("glm",), "numbers": ("glm", "mixed")}  # on tables
LINEAR, STREAMS = "afl and fedhip, fixed", "apfl, fixed"
# Data sets on whose test figures rules were picked, by any name that a setting might give them.
USED = ("digits", "fashion", "cifar100", "cifar-100", "heart", "landmine", "parkinson", "school", "wards", "synthetic")
DONE = Path(__file__).parent / "results" / "fresh.jsonl"

Line = dict[str, Any]


def measure(words: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Every method on fresh data, mean over clients and splits: accuracy, or error over a constant's, percent."""
    from .fresh_tables import Measured, rows_of_settings  # which read what is written here

    wanted = [s for s in SETTINGS if not words or any(word in s.name for word in words)]
    todo = [(s, seed) for s in wanted if s.present for seed in s.seeds]
    for setting in wanted:
        if not setting.present:
            print(f"{setting.name}: no {setting.file} below FEDSOLVE_DATA; passed over", flush=True)
    for place, (setting, seed) in enumerate(todo, 1):
        federation = None
        for run in runs(setting):
            # Read anew each time: another process may be at other settings.
            if (setting.name, seed, run) not in {(line["setting"], line["seed"], line["run"]) for line in lines()}:
                federation = federation or setting.federation(seed)
                started = time.process_time()
                found = one(run, federation, seed)
                keep({"setting": setting.name, "seed": seed, "run": run, **found}, time.process_time() - started)
        print(f"{place} of {len(todo)}: {setting.name}, split {seed}", flush=True)
    return rows_of_settings(Measured(lines()))


def runs(setting: Setting) -> tuple[str, ...]:
    """What is run on each split of a setting."""
    beside = BESIDE[setting.kind] if setting.is_table else ()
    return (*METHODS, *beside, LINEAR, *((STREAMS,) if setting.kind == "classes" else ()))


def one(run: str, federation: fs.Federation, seed: int) -> Line:
    """The figures of a method, and of each client; or those of a grid."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about digits and separation: what counts here is how models predict
        if run == LINEAR:
            return {"grids": rounded(linear_grids(federation))}
        if run == STREAMS:
            return {"grids": rounded({"apfl": apfl_grid(federation, seed)})}
        try:
            result = fs.run(fs.create(run), federation, seed=seed, workers=1, evaluate_every=1000)
        except FedsolveError as error:
            return {"refused": str(error)}
    clients = [client for _, client in sorted(result.clients.items()) if client.metrics]
    if federation.task.target.kind == "classes":
        own = [client.metrics["accuracy"] for client in clients]
        more = {name: result.metrics[name].mean for name in ("log_loss", "auc") if name in result.metrics}
    else:
        constant = float(np.mean([client.constant_metrics["rmse"] for client in clients]))
        own, more = [client.metrics["rmse"] / constant for client in clients], {"constant": constant}
    return {"figure": float(np.mean(own)), **more, "clients": [round(value, 5) for value in own]}


def rounded(grids: dict[str, dict[str, float]]) -> dict[str, dict[str, float]]:
    return {name: {key: round(value, 6) for key, value in grid.items()} for name, grid in grids.items()}


def lines() -> list[Line]:
    return [json.loads(line) for line in DONE.read_text().splitlines()] if DONE.exists() else []


def keep(line: Line, seconds: float) -> None:
    """One write of one line, so that several processes may append to one file."""
    DONE.parent.mkdir(exist_ok=True)
    with DONE.open("a") as file:
        file.write(json.dumps({**line, "cpu": round(seconds, 2)}) + "\n")


if __name__ == "__main__":
    measure(sys.argv[1:])
