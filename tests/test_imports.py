"""Importing fedsolve and running closed-form methods stays light."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from fedsolve.methods import CATALOGUE, method_class
from tests.conftest import ROOT
from tests.contract.test_catalogue import SMALL

HEAVY = ("torch", "flwr", "matplotlib", "onnxruntime", "transformers", "ray")  # scikit-learn loads pandas by itself


def loaded(code: str) -> set[str]:
    script = f"import sys\n{code}\nprint(' '.join(sorted({{m.partition('.')[0] for m in sys.modules}})))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_import_alone_loads_nothing() -> None:
    assert not loaded("import fedsolve") & {*HEAVY, "numpy", "scipy", "sklearn", "typer", "rich"}


def test_the_command_line_does_not_load_numpy_before_it_needs_it() -> None:
    assert not loaded("import fedsolve.cli") & {*HEAVY, "numpy", "scipy", "sklearn"}


CLOSED_FORM = [name for name in CATALOGUE if method_class(name).closed_form and "classes" in method_class(name).targets]
RUN_THEM = f"""
import fedsolve as fs
from fedsolve.checks import sample_federation
from fedsolve.methods import create
federation = sample_federation()
for name in {CLOSED_FORM}:
    assert fs.run(create(name, {SMALL}.get(name)), federation).accuracy.mean > 0.5, name
"""


# Nothing of these can be found, as where they are not installed. (`sys.modules["torch"] = None` is not the same:
# libraries that look whether torch has been loaded would then take it for loaded.)
WITHOUT = f"""
class Absent:
    def find_spec(self, name, *_):
        if name.partition(".")[0] in {HEAVY}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Absent())
"""


def test_closed_form_methods_load_no_heavy_library() -> None:
    assert {"local", "afl", "fedhip"} <= set(CLOSED_FORM)
    assert not loaded(RUN_THEM) & set(HEAVY)


def test_closed_form_methods_run_where_torch_is_not_installed() -> None:
    assert loaded(f"{WITHOUT}{RUN_THEM}") >= {"fedsolve", "sklearn"}
    with pytest.raises(subprocess.CalledProcessError):
        loaded(f"{WITHOUT}import torch")


DEMO = """
from fedsolve.cli import main
try:
    main()
except SystemExit as end:
    assert not end.code, end.code
"""


def test_the_demo_loads_only_what_it_uses(tmp_path: Path) -> None:
    """Half of what `fedsolve run` takes is loading libraries; scikit-learn alone would double it."""
    script = f"import sys\n{DEMO}\nprint(*sys.modules)"
    arguments = [sys.executable, "-c", script, "run", "--out", str(tmp_path / "run")]
    names = set(subprocess.run(arguments, capture_output=True, text=True, check=True).stdout.split())
    unused = {*HEAVY, "sklearn", "pandas", "pyarrow", "PIL", "cryptography", "sqlite3"}
    unused |= {"scipy.special", "scipy.stats", "scipy.optimize", "scipy.spatial", "scipy.ndimage"}
    assert not unused & names
    assert {"numpy", "scipy.linalg", "fedsolve.result"} <= names  # it did run


def test_a_method_that_imports_another_is_caught(tmp_path: Path) -> None:
    """The contract in pyproject.toml is read and holds: one planted import breaks it, and nothing else."""
    pytest.importorskip("importlinter", reason="import-linter is not installed")
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    ditto = tmp_path / "src" / "fedsolve" / "methods" / "ditto.py"
    ditto.write_text(f"{ditto.read_text()}\n\nfrom fedsolve.methods import fedavg\n")
    linter = [sys.executable, "-c", "from importlinter.cli import lint_imports_command as lint; lint()", "--no-cache"]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "src")}
    done = subprocess.run(linter, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    broken = [line for line in done.stdout.splitlines() if line.endswith("BROKEN")]
    assert broken == ["no method knows another BROKEN"]
    assert "fedsolve.methods.ditto -> fedsolve.methods.fedavg" in done.stdout


def test_a_site_loads_little() -> None:
    pytest.importorskip("flwr")
    # Flower starts a process a message, and ten sites on one machine load everything twenty times.
    code = "import fedsolve.runtime.flower, fedsolve.methods.fedhip"
    script = f"{code}\nimport sys\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert not {"scipy.special", "scipy.optimize", "sklearn", "torch", "ray"} & set(done.stdout.split())


def test_help_answers_at_once() -> None:
    """In seconds of work, which do not depend on what else the machine does."""
    best = 10.0
    for _ in range(5):
        before = os.times()
        subprocess.run([sys.executable, "-m", "fedsolve", "--help"], capture_output=True, check=True)
        after = os.times()
        best = min(best, sum(after[2:4]) - sum(before[2:4]))  # of children, user and system
    assert best < 0.5
