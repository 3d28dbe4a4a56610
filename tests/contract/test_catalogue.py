"""Every method of the catalogue, with several settings, under every check of the contract."""

from __future__ import annotations

import ast
import importlib.util
import re
from collections.abc import Callable, Iterator
from functools import partial

import pytest
from _pytest.mark import ParameterSet

import fedsolve as fs
from fedsolve.checks import CHECKS, checks_for, contract
from fedsolve.checks.laws import hold
from fedsolve.checks.probes import with_settings
from fedsolve.methods import CATALOGUE, classes, create, homes, method_class
from fedsolve.methods import VARIANTS as METHOD_VARIANTS
from fedsolve.parameters import values
from tests.conftest import ROOT

# Defaults that would only take long on federations this small.
NETWORK: dict[str, object] = {"model": "mlp:8", "rounds": 2, "epochs": 6, "batch": 16, "lr": 0.05}
GRADIENT = tuple(name for name in CATALOGUE if not method_class(name).closed_form)
SMALL: dict[str, dict[str, object]] = {
    "apfl": {"d_primary": 30, "d_refine": 20},
    "deepafl": {"width": 12, "blocks": 2},
    "fedacnnl": {"network": "mlp:12,8"},
    "pfedacnnl": {"network": "mlp:12,8", "groups": 3},
    **dict.fromkeys(GRADIENT, NETWORK),
    "baffle": {**NETWORK, "directions": 10},
    "pfedzo": {**NETWORK, "directions": 8, "epochs": 3, "inner": 2},
}
TORCH = importlib.util.find_spec("torch") is not None
VARIANTS: dict[str, list[dict[str, object]]] = {
    "local": [{"ridge": 0.0}, {"ridge": 1.0, "intercept": True}, {"intercept": True}, *([NETWORK] * TORCH)],
    "fedavg-ft": [{"finetune": 0}],
    "baffle": [{"exchange": "losses", "model": "lr", "directions": 10, "rounds": 12, "lr": 0.2, "centred": False}],
    "fedala": [{"layers": 2, "sample": 0.5}],
    "fedapa": [
        {"share": "all", "momentum": 0.9, "rounds": 3},
        {"normalise": "paper", "centred": False, "scaled": False, "rounds": 3},
    ],
    "fedproto": [{"decide": "head", "by_samples": True}],
    "fedgh": [{"evaluate": "global", "epochs": 12, "server_lr": 0.1}],
    "fedamp": [{"alpha": 1.0, "sigma": 0.5, "rounds": 3}],
    "apple": [{"full": True, "share_lr": 0.01, "rounds": 3}],
    "pfedla": [{"own": 0.5, "scaled": False, "evaluate": "sent", "rounds": 3}],
    "pfedhn": [{"share": "all", "hidden": 20, "rounds": 8}],
    "afl": [{"ridge": 1.0}, {"intercept": True}],
    "apfl": [
        {"d_primary": 200, "d_refine": 150},
        {"d_primary": 5, "act_primary": "tanh", "gamma": 0.0, "beta": 1.0, "lam": 0.5},
    ],
    "fedprior": [{"shrink": 1.0}],
    "mixed": [{"slopes": "none", "likelihood": "ml"}, {"slopes": "x0,x2", "covariance": "full"}],
    "glm": [{"ridge": 1.0}, {"ridge": 0.1, "personal": False, "errors": "sites"}],
    "deepafl": [
        {"start": "random", "alpha": 0.0, "cache": 0.0},
        {"blocks": 1, "activation": "tanh", "ridge": 0.0, "block_ridge": 0.01, "alpha": 5.0},
    ],
    "fedacnnl": [{"network": "lr", "gamma": 0.0}, {"scale": "unit", "cache": 0.0, "block": 7}, {"adaptive": True}],
    "pfedacnnl": [
        {"network": "lr", "epsilon": 1.0, "groups": 1},
        {"personal": False, "profile": "features", "adaptive": True},
    ],
    "fedhip": [{"alpha": 0.0}, {"alpha": 20.0, "intercept": True}, {"intercept": True}, {"beta": 0.0}],
}


LITTLE = {"epochs": 2, "rounds": 3}

# What other settings of a method may break as easily as the method: the rest of their checks takes long.
SETTINGS = ("same_seed_same_bits", "absent_clients_are_not_there", "lost_replies_are_not_there", "better_than_guessing")


def methods() -> Iterator[tuple[fs.Method, bool]]:
    """Methods, and whether each has the settings that others vary."""
    for name in CATALOGUE:
        if name in GRADIENT and not TORCH:
            continue
        for settings in ({}, *VARIANTS.get(name, [])):
            yield create(name, {**SMALL.get(name, {}), **settings}), not settings


def brief(method: fs.Method) -> fs.Method:
    """A network with as little training as still has epochs and rounds: enough where nothing need be learned."""
    if method.closed_form:
        return method
    settings = values(method)
    return with_settings(method, **{name: min(settings[name], most) for name, most in LITTLE.items()})


def cases() -> Iterator[ParameterSet]:
    for method, usual in methods():
        little = brief(method)
        for title, check in checks_for(method):
            short = usual or title in SETTINGS or title.startswith("law ")
            given = method if title == "better_than_guessing" else little
            yield pytest.param(given, check, id=f"{method!r}-{title}", marks=() if short else pytest.mark.long)


CASES = list(cases())


@pytest.mark.filterwarnings("ignore:.*no finite coefficients are likeliest")  # classes that are easy to tell apart
@pytest.mark.filterwarnings("ignore:mixed has no more samples")
@pytest.mark.parametrize(("method", "check"), CASES)
def test_contract(method: fs.Method, check: Callable[[fs.Method], None]) -> None:
    check(method)


def test_nothing_was_left_out() -> None:
    """A broken collector cannot pass: every method meets every check, and every law is claimed by somebody."""
    names = [name for name in CATALOGUE if TORCH or name not in GRADIENT]
    assert len(CASES) >= len(names) * (len(CHECKS) + 1)
    assert set(VARIANTS) <= set(CATALOGUE)
    claimed = {type(law) for name in CATALOGUE for cls in classes(name) for law in cls.laws}
    assert claimed == set(hold.registry) - {object}


@pytest.mark.parametrize("name", list(CATALOGUE))
def test_every_method_is_a_class_of_the_package_and_documented(name: str) -> None:
    cls = method_class(name)  # torch or not, every method can be listed
    assert getattr(fs, cls.__name__) is cls
    assert cls.__name__ in dir(fs)
    assert cls.name == name
    assert cls.__doc__
    assert cls.paper
    assert cls.sends


def test_check_method_runs_every_check_that_applies(monkeypatch: pytest.MonkeyPatch) -> None:
    method, ran = fs.FedHiP(beta=1.0, intercept=False), list[str]()
    for title in CHECKS:
        monkeypatch.setitem(CHECKS, title, partial(lambda title, _: ran.append(title), title))
    monkeypatch.setattr(contract, "hold", lambda law, _: ran.append(f"law {law}"))
    fs.check_method(method)
    assert ran == [title for title, _ in checks_for(method)]
    assert len(ran) == len(CHECKS) + len(method.laws) > len(CHECKS)


def typed_names() -> dict[str, str]:
    """What `import fedsolve` has for a type checker: public names and the modules they are from."""
    tree = ast.parse((ROOT / "src" / "fedsolve" / "__init__.py").read_text())
    (block,) = (node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")
    return {
        str(alias.asname): str(line.module)  # `as` itself: without, a type checker takes it for private
        for line in block.body
        if isinstance(line, ast.ImportFrom)
        for alias in line.names
        if alias.asname == alias.name
    }


def test_type_checkers_see_every_public_name_as_what_it_is() -> None:
    types = typed_names()
    assert {*types, "__version__"} == set(dir(fs))
    assert {name: types[name] for _, name in homes()} == {name: module for module, name in homes()}
    for name, module in types.items():
        if TORCH or "torch" not in module:
            assert getattr(fs, name) is getattr(importlib.import_module(module), name)


def test_every_method_has_a_row_in_the_table_of_the_docs() -> None:
    rows = dict(re.findall(r"^\| `([\w-]+)` (\|.*)$", (ROOT / "docs" / "methods.md").read_text(), re.MULTILINE))
    assert rows.keys() == CATALOGUE.keys()
    for name, variants in METHOD_VARIANTS.items():
        for parameter in variants:
            assert f"`{parameter}=" in rows[name]


def test_unknown_methods_and_attributes() -> None:
    with pytest.raises(fs.FedsolveError, match="did you mean 'fedhip'"):
        create("fedhop")
    with pytest.raises(AttributeError, match="FedHop"):
        fs.FedHop  # noqa: B018
