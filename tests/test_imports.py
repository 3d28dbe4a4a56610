"""Importing fedsolve and running closed-form methods stays light."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

HEAVY = ("torch", "flwr", "matplotlib", "onnxruntime", "transformers", "ray")  # scikit-learn loads pandas by itself


def loaded(code: str) -> set[str]:
    script = f"import sys\n{code}\nprint(' '.join(sorted({{m.partition('.')[0] for m in sys.modules}})))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_import_alone_loads_nothing() -> None:
    assert not loaded("import fedsolve") & {*HEAVY, "numpy", "scipy", "sklearn", "typer", "rich"}


def test_the_command_line_does_not_load_numpy_before_it_needs_it() -> None:
    assert not loaded("import fedsolve.cli") & {*HEAVY, "numpy", "scipy", "sklearn"}


def test_closed_form_methods_load_no_heavy_library() -> None:
    code = """
import fedsolve as fs
federation = fs.load("digits").split(fs.dirichlet(0.1), clients=5)
for method in (fs.Local(), fs.AFL(), fs.FedHiP()):
    fs.run(method, federation)
"""
    assert not loaded(code) & set(HEAVY)


def test_a_site_loads_little() -> None:
    pytest.importorskip("flwr")
    # Flower starts a process a message, and ten sites on one machine load everything twenty times.
    code = "import fedsolve.runtime.flower, fedsolve.methods.fedhip"
    script = f"{code}\nimport sys\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert not {"scipy.special", "scipy.optimize", "sklearn", "torch", "ray"} & set(done.stdout.split())


def test_help_answers_at_once() -> None:
    best = 10.0
    for _ in range(5):
        started = time.perf_counter()
        subprocess.run([sys.executable, "-m", "fedsolve", "--help"], capture_output=True, check=True)
        best = min(best, time.perf_counter() - started)
    assert best < 0.5
