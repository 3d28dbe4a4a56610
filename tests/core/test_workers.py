"""Tables on a cluster: a real one of processes on this machine, told of by its workers and added up as a tree."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedsolve as fs
from fedsolve.data.large import Large

pa = pytest.importorskip("pyarrow")
pandas = pytest.importorskip("pandas")


def table(rows: int = 400) -> Any:
    rng = np.random.default_rng(5)
    age = rng.normal(50, 9, rows)
    age[::9] = np.nan
    return pandas.DataFrame({"age": age, "sex": rng.choice(["f", "m"], rows), "ill": rng.choice(["no", "yes"], rows)})


def written(folder: Path) -> Path:
    path = folder / "ward.parquet"
    table().to_parquet(path, index=False)
    return path


def agree(found: Large, wanted: Large) -> None:
    """The same map to the bit, and moments to rounding."""
    assert str(found.fitted().task.features) == str(wanted.fitted().task.features)
    here, there = (each.fitted().moments(intercept=True) for each in (found, wanted))
    assert here.count == there.count
    np.testing.assert_allclose(here.triangle, there.triangle, rtol=1e-12, atol=1e-9)
    np.testing.assert_allclose(here.cross, there.cross, rtol=1e-12, atol=1e-9)


def test_partitions_add_up_in_any_order_and_empty_ones_are_nothing(tmp_path: Path) -> None:
    frame, alone = table(), fs.stream(written(tmp_path), label="ill")
    cuts = [frame[:150], frame[150:150], frame[150:390], frame[390:]]
    for order in list(permutations(range(4)))[::5]:

        def gather(tell: Callable[[int, Any], Any], add: Callable[[Any, Any], Any], order: Any = order) -> Any:
            told = [tell(place, cuts[place]) for place in order]
            return add(add(told[0], told[1]), add(told[2], told[3]))

        agree(fs.stream(fs.Workers("cuts", gather, frame[:50]), label="ill"), alone)


def test_a_partition_may_be_a_table_of_pyarrow(tmp_path: Path) -> None:
    whole = pa.Table.from_pandas(table(), preserve_index=False)
    halves = fs.Workers("halves", lambda tell, add: add(tell(0, whole.slice(0, 99)), tell(1, whole.slice(99))), whole)
    agree(fs.stream(halves, label="ill"), fs.stream(written(tmp_path), label="ill"))


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    distributed = pytest.importorskip("distributed", reason="Dask is not installed: pip install 'fedsolve[dask]'")
    here = {"host": "127.0.0.1", "dashboard_address": None, "scheduler_port": 0}
    cluster = distributed.LocalCluster(n_workers=2, threads_per_worker=1, **here)
    with cluster, distributed.Client(cluster) as client:
        yield client


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")  # Dask's own, about pandas
def test_a_cluster_of_processes_gives_what_one_process_does(cluster: Any, tmp_path: Path) -> None:
    dask = pytest.importorskip("dask.dataframe")
    path = written(tmp_path)
    frame = dask.from_pandas(table(), npartitions=5)
    agree(fs.stream(frame, label="ill"), fs.stream(path, label="ill"))
    told: frozenset[int] = (
        fs.stream(frame, label="ill")
        .samples()
        .fold(lambda part: frozenset([os.getpid()]), lambda left, right: left | right)
    )
    assert os.getpid() not in told and len(told) == 2, "partitions are told of by the workers that have them"
    client = fs.stream(frame, label="ill").fitted().client_of("ward-a", test=0.25)
    assert len(client.train) + len(client.test) == 400 and 60 < len(client.test) < 140
