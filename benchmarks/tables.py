"""A large table with texts and holes, as CSV and as Parquet: time and peak memory from the file to the models.

The bar: within twice the time that pandas takes to read the file, plus the solve, and three times the memory that the
table takes in float64. Fewer rows: `python -m benchmarks.tables 100000`.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROWS, COLUMNS, CLIENTS = 1_000_000, 50, 100

WRITE = """
import sys
import numpy as np
import pandas as pd
rows, columns, clients, csv, parquet = *map(int, sys.argv[1:4]), *sys.argv[4:]
rng = np.random.default_rng(0)
numbers = {f"n{place:02}": rng.normal(50, 10, rows).round(3) for place in range(columns - 5)}
for name in list(numbers)[:5]:
    numbers[name][rng.random(rows) < 0.1] = np.nan
words = {f"t{place}": rng.choice(["low", "middle", "high"], rows) for place in range(5)}
label = np.where(np.nan_to_num(numbers["n00"], nan=50.0) + rng.normal(0, 5, rows) > 50, "yes", "no")
owner = [f"site {n}" for n in rng.integers(clients, size=rows)]
frame = pd.DataFrame({**numbers, **words, "client": owner, "y": label})
frame.to_csv(csv, index=False)
frame.to_parquet(parquet, index=False)
"""

PANDAS = """
import json, sys, time
import pandas as pd
import pyarrow.parquet
started = time.perf_counter()
(pd.read_csv if sys.argv[1].endswith("csv") else pd.read_parquet)(sys.argv[1])
print(json.dumps({"seconds": time.perf_counter() - started}))
"""

OURS = """
import json, sys, time
import fedsolve as fs
import pyarrow.csv, pyarrow.parquet
load, run, method = fs.load, fs.run, fs.AFL(ridge=1.0, intercept=True)  # imported before the clock starts, as pandas is
started = time.perf_counter()
table = load(sys.argv[1])
read = time.perf_counter()
federation = table.split("by-client")
del table
split = time.perf_counter()
result = run(method, federation)
done = time.perf_counter()
status = open("/proc/self/status").read().split()
peak = int(status[status.index("VmHWM:") + 1]) * 1024
print(json.dumps({"read": read - started, "columns": split - read, "solve": done - split, "peak": peak,
                  "features": federation.task.width, "accuracy": result.accuracy.pooled}))
"""


def measure(rows: int = ROWS) -> list[dict[str, Any]]:
    """A table of 1,000,000 rows and 50 columns at 100 clients, AFL: seconds beside those of pandas, and memory."""
    found = []
    with tempfile.TemporaryDirectory() as folder:
        paths = [str(Path(folder) / f"t.{ending}") for ending in ("csv", "parquet")]
        subprocess.run([sys.executable, "-c", WRITE, *map(str, (rows, COLUMNS, CLIENTS)), *paths], check=True)
        for path in paths:
            pandas, ours = (
                json.loads(subprocess.run([sys.executable, "-c", script, path], capture_output=True, check=True).stdout)
                for script in (PANDAS, OURS)
            )
            total = ours["read"] + ours["columns"] + ours["solve"]
            found.append(
                {
                    "file": path.rpartition(".")[2],
                    "rows": rows,
                    "pandas reads s": pandas["seconds"],
                    "read s": ours["read"],
                    "columns s": ours["columns"],
                    "solve s": ours["solve"],
                    "total over (pandas + solve)": total / (pandas["seconds"] + ours["solve"]),
                    "bar": 2.0,
                    "peak GB": ours["peak"] / 1e9,
                    "peak over table": ours["peak"] / (8 * rows * COLUMNS),
                    "bar ": 3.0,
                }
            )
    return found


if __name__ == "__main__":
    for row in measure(int(sys.argv[1]) if len(sys.argv) > 1 else ROWS):
        print(json.dumps(row))
