"""Work at a site that never ends: it is interrupted, or its process is, and the site's record says so."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import fedsolve as fs
from fedsolve.runtime import deadline

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedsolve[flower]'")

SITE = """
import sys, threading, time
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity
from fedsolve import codec
from fedsolve.methods import afl
from fedsolve.runtime import deadline
from fedsolve.runtime import job as jobs
from fedsolve.runtime.flower import make_client_app
from fedsolve.runtime.flower.messages import packed

how, folder = sys.argv[1:]
deadline.GRACE = 0.5

def hang(self, private, message, site):
    while True:
        try:
            time.sleep(3600)
        except Exception:
            if how != "deaf":
                raise

afl.AFL.update = hang
TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 7, 1
head = {"version": jobs.VERSION, "job": jobs.to_text(jobs.Job("afl")), "features": "identity"}
message = Message(RecordDict({"head": ConfigRecord(head), "body": packed(codec.encode({}))}), 1, "query.hello")
message.metadata.__dict__["_message_id"] = "1"
config = {"client": "a", "data": f"{folder}/d.npz", "state": f"{folder}/state", "deadline": "1"}

def call():
    reply = make_client_app()(message, Context(7, 1, config, RecordDict(), {}))
    print(reply.content.config_records["head"]["failed"])

if how == "thread":
    worker = threading.Thread(target=call)
    worker.start()
    worker.join()
else:
    call()
"""


@pytest.mark.parametrize("how", ["main", "deaf", "thread"])
def test_a_method_that_hangs_ends_within_the_sites_own_limit(tmp_path: Path, how: str) -> None:
    """In 0.1.0 its process stayed for ever, and its node answered no later run."""
    np.savez(tmp_path / "d.npz", x=np.random.default_rng(0).normal(size=(40, 3)), y=np.arange(40) % 2)
    command = [sys.executable, "-c", SITE, how, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    hello, *lines = [json.loads(line) for line in (tmp_path / "state" / "audit.jsonl").read_text().splitlines()]
    assert hello["sent"] == "a description"
    assert [line["what"] for line in lines] == ["update"]
    assert lines[0]["refused"].startswith("it took longer than 1 s, its own limit")
    if how == "main":
        assert done.returncode == 0, done.stderr
        assert "it took longer than 1 s" in done.stdout
    else:
        assert done.returncode == deadline.ENDED, done.stderr
        assert "the process was ended" in lines[0]["refused"]


def test_an_alarm_of_somebody_else_rings_in_its_time() -> None:
    rung: list[float] = []
    handler = signal.signal(signal.SIGALRM, lambda number, frame: rung.append(time.monotonic()))
    before = signal.setitimer(signal.ITIMER_REAL, 0.2)
    try:
        started = time.monotonic()
        with pytest.raises(fs.DataError, match=r"longer than 0.05 s"), deadline.limit(0.05, print):
            time.sleep(60)
        while not rung and time.monotonic() < started + 60:
            time.sleep(0.01)
        assert rung and rung[0] - started >= 0.19
    finally:
        signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, *before)  # that of the test's own limit


def test_work_within_the_limit_leaves_no_trace() -> None:
    before = signal.getsignal(signal.SIGALRM)
    with deadline.limit(60.0, print):
        assert signal.getsignal(signal.SIGALRM) is not before
    assert signal.getsignal(signal.SIGALRM) is before
