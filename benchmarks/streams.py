"""A site whose Parquet file is larger than its memory: peak memory, and CPU seconds beside a bare loop over the file.

The file stands for 10 GB: 20 million rows of 64 columns in float64, written with 1,000 different numbers a column, so
that it takes about 1.7 GB of the disk. The bar: at most 1 GB of memory beside F'F, and 0.7 of the throughput of
pyarrow's `iter_batches` with BLAS. Each figure is of a new process; both sides take turns. Fewer rows:
`python -m benchmarks.streams 1000000`.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROWS, COLUMNS, CLASSES, TURNS = 20_000_000, 64, 2, 3

WRITE = """
import sys
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
rows, columns, path = *map(int, sys.argv[1:3]), sys.argv[3]
rng, size = np.random.default_rng(0), 250_000
numbers = [rng.integers(1000, size=2 * size) / 8 + 50 for place in range(columns)]
names = [*(f"n{place:02}" for place in range(columns)), "y"]
writer = None
for start in range(0, rows, size):
    count, shift = min(size, rows - start), rng.integers(size, size=columns)
    block = [column[by : by + count] for column, by in zip(numbers, shift)]
    label = (block[0] - block[1] + rng.normal(0, 40, count) > 0).astype(np.int64)
    table = pa.table(dict(zip(names, [*block, label])))
    writer = writer or pq.ParquetWriter(path, table.schema)
    writer.write_table(table, row_group_size=size)
writer.close()
"""

COSTS = """
usage, status = resource.getrusage(resource.RUSAGE_SELF), open("/proc/self/status").read().split()
peak = int(status[status.index("VmHWM:") + 1]) * 1024
print(json.dumps({"cpu": usage.ru_utime + usage.ru_stime - before, "peak": peak, "trace": float(trace)}))
"""
BEGIN = """
import json, resource, sys
import numpy as np
import pyarrow as pa, pyarrow.parquet as pq
import fedsolve as fs
fs.stream, fs.Moments
def used():
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime
path = sys.argv[1]
"""

BARE = f"""{BEGIN}
before = used()
file = pq.ParquetFile(path, pre_buffer=False)  # faster than the default, and in a fifth of the memory
columns = len(file.schema_arrow.names) - 1
gram, cross = np.zeros((columns + 1, columns + 1)), np.zeros((columns + 1, {CLASSES}))
for batch in file.iter_batches(batch_size=2**16):
    rows = np.ones((columns + 1, batch.num_rows))
    for place in range(columns):
        rows[place] = batch.column(place).to_numpy()
    gram += rows @ rows.T
    cross += rows @ np.eye({CLASSES})[batch.column(columns).to_numpy()]
trace = gram.trace()
{COSTS}"""

# The moments that afl sends, of columns as they are.
NUMBERS = f"""{BEGIN}
before = used()
site = fs.stream(path, columns="numbers")
moments = site.moments(intercept=True)
trace = moments.diagonal().sum()
{COSTS}"""

# The two rounds that fit `columns`, and the moments of what it makes of the table.
FITTED = f"""{BEGIN}
before = used()
site = fs.stream(path).fitted("columns")
moments = site.moments(intercept=True)
trace = moments.diagonal().sum()
{COSTS}"""


def measure(rows: int = ROWS) -> list[dict[str, Any]]:
    """A Parquet file that stands for 10 GB, streamed: peak memory, and CPU seconds over those of a bare loop."""
    scripts = {"bare loop": BARE, "moments": NUMBERS, "columns, then moments": FITTED}
    alone = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "large.parquet")
        subprocess.run([sys.executable, "-c", WRITE, str(rows), str(COLUMNS), path], check=True)
        stored = Path(path).stat().st_size
        found: dict[str, list[dict[str, float]]] = {name: [] for name in scripts}
        for _ in range(TURNS):
            for name, script in scripts.items():
                done = subprocess.run([sys.executable, "-c", script, path], capture_output=True, check=True, env=alone)
                found[name].append(json.loads(done.stdout))
    floor = [turn["cpu"] for turn in found["bare loop"]]
    traces = {round(turns[0]["trace"] / found["bare loop"][0]["trace"], 12) for turns in list(found.values())[:2]}
    if traces != {1.0}:
        raise RuntimeError(f"the streamed moments are not those of the bare loop: {traces}")
    return [
        {
            "what": name,
            "rows": rows,
            "stands for GB": 8 * rows * COLUMNS / 1e9,
            "file GB": stored / 1e9,
            "cpu s": statistics.median(turn["cpu"] for turn in turns),
            "throughput of the bare loop": statistics.median(
                base / turn["cpu"] for base, turn in zip(floor, turns, strict=True)
            ),
            "peak MB": max(turn["peak"] for turn in turns) / 1e6,
        }
        for name, turns in found.items()
    ]


if __name__ == "__main__":
    for row in measure(*map(int, sys.argv[1:])):
        print(row)
