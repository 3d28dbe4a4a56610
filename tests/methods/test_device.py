"""Networks compute on the device that was chosen, and nothing takes the CPU for granted.

No accelerator is needed to see it. Torch's `meta` device stands for one: its tensors have no values, and an operation
on one of them and on a tensor of the CPU is an error. What a real device would copy back is made up, as ones.
"""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedsolve as fs
from fedsolve import accelerator, methods, parameters
from fedsolve.checks.probes import federation_for
from fedsolve.methods import CATALOGUE, create
from tests.conftest import ROOT
from tests.contract.test_catalogue import NETWORK
from tests.runtime.test_cli import Command, command  # noqa: F401

torch = pytest.importorskip("torch", reason="torch is not installed: pip install 'fedsolve[torch]'")
from torch.overrides import TorchFunctionMode  # noqa: E402

from fedsolve.families.gradient import networks, tensors  # noqa: E402

NETWORKS = [name for name in CATALOGUE if any(kind.on_device for kind in methods.classes(name))]
FACTORIES = {
    torch.arange, torch.as_tensor, torch.empty, torch.eye, torch.full, torch.linspace, torch.ones, torch.rand,
    torch.randint, torch.randn, torch.randperm, torch.tensor, torch.zeros,
}  # fmt: skip
SCALARS = {torch.Tensor.item, torch.Tensor.__float__, torch.Tensor.__int__, torch.Tensor.__bool__}


class Elsewhere(TorchFunctionMode):  # type: ignore[misc]  # to mypy, torch is Any
    """Inside, tensors are made on a device that is named; values that come back from the meta device are ones."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in FACTORIES and kwargs.get("device") is None:
            raise AssertionError(f"torch.{func.__name__} takes the default device for granted")
        there = args and isinstance(args[0], torch.Tensor) and args[0].is_meta
        if there and func in SCALARS:
            return 1.0
        if there and func is torch.Tensor.cpu:
            return torch.ones(args[0].shape, dtype=args[0].dtype, device="cpu")
        if func is torch.bincount and there:  # its shape depends on values
            return torch.ones(10, dtype=torch.int64, device="meta")
        if func is torch._fused_sgd_ and args[0][0].is_meta:  # meta has no such kernel, but all must be there
            assert all(tensor.is_meta for group in args[:3] for tensor in group)
            return None
        return func(*args, **kwargs)


class _Generator:
    """The generator of a device that is not there."""

    def manual_seed(self, seed: int) -> None: ...

    def get_rng_state(self) -> Any:
        return torch.zeros(1, device="cpu")

    def set_rng_state(self, state: Any) -> None: ...


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """The meta device is where networks compute."""
    monkeypatch.setattr(accelerator, "current", lambda: "meta")
    monkeypatch.setattr(tensors, "_accelerator", _Generator)


def small(name: str) -> Any:
    """A method with as few steps as show all that it does."""
    takes = {each for each, _, _ in parameters.declared(methods.method_class(name, {"model": "mlp:8"}))}
    chosen = {**NETWORK, "epochs": 1, "batch": 8, "directions": 2, "steps": 2, "hidden": 16, "inner": 2}
    return create(name, {each: value for each, value in chosen.items() if each in takes})


@pytest.mark.usefixtures("elsewhere")
@pytest.mark.parametrize("name", NETWORKS)
def test_a_whole_run_is_on_the_device(name: str) -> None:
    method = small(name)
    with Elsewhere():
        result = fs.run(method, federation_for(method, sizes=(20, 12, 8)), workers=1)
    assert all(np.isfinite(array).all() for array in result.state.values())
    assert len(result.models) == len(result.clients)


def test_a_tensor_without_a_device_is_caught() -> None:
    with Elsewhere():
        torch.zeros(3, device="cpu")
        with torch.device("cpu"):
            torch.zeros(3)
        with pytest.raises(AssertionError, match=r"torch\.zeros takes the default device for granted"):
            torch.zeros(3)
        with pytest.raises(RuntimeError, match="meta"):  # and so is a tensor that stayed behind
            torch.ones(3, device="cpu") @ torch.ones(3, device="meta")


def test_arrays_and_tensors_become_each_other_in_one_place() -> None:
    """`from_numpy` knows no device, and `numpy` knows the CPU alone."""
    found: set[tuple[str, str]] = set()
    names = ("from_numpy", "numpy", "default_generator")
    for folder in ("families/gradient", "methods"):
        for path in (ROOT / "src" / "fedsolve" / folder).glob("*.py"):
            nodes = ast.walk(ast.parse(path.read_text()))
            found |= {
                (path.name, node.attr) for node in nodes if isinstance(node, ast.Attribute) and node.attr in names
            }
    assert found - {("networks.py", "default_generator")} == {("tensors.py", name) for name in names}


# --- which device ---


def test_the_cpu_is_the_default_and_auto_finds_what_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(accelerator.VARIABLE, raising=False)
    assert (accelerator.find(), accelerator.current()) == ("cpu", "cpu")
    for there in (("cpu",), ("mps", "cpu"), ("cuda", "cpu")):
        monkeypatch.setattr(accelerator, "_there", lambda there=there: there)
        assert accelerator.find("auto") == there[0]
        monkeypatch.setenv(accelerator.VARIABLE, "auto")
        assert accelerator.find() == there[0]
        monkeypatch.delenv(accelerator.VARIABLE)


def test_a_device_that_is_not_there_is_refused_in_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accelerator, "_there", lambda: ("cpu",))
    federation = federation_for(small("fedavg"))
    with pytest.raises(fs.ParameterError, match=r"^device 'cuda' is not there; torch finds cpu: choose one, or auto$"):
        fs.run(small("fedavg"), federation, device="cuda")
    with pytest.raises(fs.FedsolveError, match="unknown device 'gpu'"):
        fs.run(small("fedavg"), federation, device="gpu")
    with pytest.raises(fs.ParameterError, match="'cuda' is for methods that train networks; afl solves, on the CPU"):
        fs.run(fs.AFL(), federation, device="cuda")


def test_a_run_says_where_it_was_and_its_models_do_not(tmp_path: Path) -> None:
    method = small("fedavg")
    federation = federation_for(method)
    plain, asked = fs.run(method, federation), fs.run(method, federation, device="auto")
    assert plain.settings["device"] == "cpu"
    assert asked.settings["device"] == accelerator.find("auto")
    assert "device" not in fs.run(fs.AFL(), federation, device="auto").settings
    metadata = json.dumps(asked.models[min(asked.models)].metadata())
    assert "device" not in metadata and "cpu" not in metadata
    if accelerator.find("auto") == "cpu":
        assert all(np.array_equal(plain.state[name], asked.state[name]) for name in plain.state)


def test_first_weights_are_the_same_on_every_device(monkeypatch: pytest.MonkeyPatch) -> None:
    task = federation_for(small("fedavg")).task
    here = networks.initial("mlp:8", task, np.random.default_rng(3))
    monkeypatch.setattr(accelerator, "current", lambda: "meta")
    monkeypatch.setattr(tensors, "_accelerator", _Generator)
    there = networks.initial("mlp:8", task, np.random.default_rng(3))
    assert here.keys() == there.keys()
    assert all(np.array_equal(here[name], there[name]) for name in here)


def test_double_precision_is_refused_where_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accelerator, "current", lambda: "mps")
    with pytest.raises(fs.ParameterError, match="needs double precision, which the device 'mps' does not have"):
        tensors.check_doubles("the change of a loss")


def test_the_command_line_says_where(
    command: Command,  # noqa: F811
    tmp_path: Path,
) -> None:
    words = ("run", "--data", "wards", "--method", "fedavg", "--set", "model=lr", "--rounds", "1", "--out", "out")
    done = command(*words, "--device", "auto")
    where = accelerator.find("auto")
    assert done.code == 0 and f"trained on {where}" in done.out
    assert json.loads((tmp_path / "out" / "result.json").read_text())["settings"]["device"] == where
    refused = command("run", "--data", "wards", "--device", "cuda", "--out", "other")
    assert refused.code == 2 and "is for methods that train networks" in refused.err
