"""Every reader of strangers' bytes, with valid inputs and seeded damage: only the library's own errors, and frugally.

`make fuzz` does the same with a million inputs, and measures the memory of whole processes.
"""

from __future__ import annotations

import itertools
import time
import tracemalloc
from collections.abc import Iterator

import pytest

from fedsolve.errors import FedsolveError
from tests.security.targets import Target, every

INPUTS = 250  # of each reader
MEGABYTES = 64  # that reading may take above the input
NAMES = (
    "codec", "request", "memory", "replies", "tallies", "description", "job", "task", "contribution", "terms", "model",
    "csv", "npz", "toml", "comparison", "config", "result", "report", "parquet", "stream", "words",
    "columns", "told", "secure-site", "secure-opening", "secure-part", "secure-shares", "session", "journal",
    "spent", "policy", "leaf", "pickle", "audit", "invitation", "record",
)  # fmt: skip
SECURE = (  # need cryptography
    "secure-site", "secure-opening", "secure-part", "secure-shares", "session", "journal", "invitation", "record",
)  # fmt: skip


@pytest.fixture(scope="module")
def targets(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Target]]:
    yield every(tmp_path_factory.mktemp("fuzz"))


def test_every_reader_is_tried(targets: dict[str, Target]) -> None:
    assert set(NAMES) - targets.keys() <= {"parquet", "stream", *SECURE}
    assert targets.keys() <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_valid_inputs_are_read(targets: dict[str, Target], name: str) -> None:
    """Readers that refuse everything would be no test of what they do."""
    if name not in targets:
        pytest.skip("its package is not installed: pip install 'fedsolve[data,secure]'")
    for data in targets[name].seeds:
        targets[name].read(data)


@pytest.mark.parametrize("name", NAMES)
def test_damage_is_refused_in_the_librarys_own_words_at_once_and_without_memory(
    targets: dict[str, Target], name: str
) -> None:
    if name not in targets:
        pytest.skip("its package is not installed: pip install 'fedsolve[data,secure]'")
    target, refused = targets[name], 0
    tracemalloc.start()
    try:
        for data in itertools.islice(target.inputs(0), INPUTS):
            tracemalloc.reset_peak()
            before, started = tracemalloc.get_traced_memory()[0], time.process_time()
            try:
                outcome = target.read(data)
                refused += target.silent and bool(outcome)
            except FedsolveError as error:
                assert not target.silent, f"{data!r} raises {error}"
                refused += 1
            except Exception as error:
                raise AssertionError(f"{name}: {data!r} raises {type(error).__name__}: {error}") from error
            assert time.process_time() - started < 1, f"{name}: {data!r} is slow"
            peak = tracemalloc.get_traced_memory()[1] - before
            assert peak < MEGABYTES * 2**20 + len(data), f"{name}: {data!r} takes {peak} bytes"
    finally:
        tracemalloc.stop()
    assert refused > INPUTS // 10  # the damage is real
