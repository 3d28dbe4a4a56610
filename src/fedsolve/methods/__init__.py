"""The catalogue: one line per method. Modules are imported when a method is first used.

`local` stands for two methods, one per family: ridge, and a network where `model` names one.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import cast

from fedsolve import parameters
from fedsolve.errors import unknown
from fedsolve.method import Method

CATALOGUE: dict[str, str] = {
    "local": "fedsolve.methods.local:Local",
    "afl": "fedsolve.methods.afl:AFL",
    "fedhip": "fedsolve.methods.fedhip:FedHiP",
    "apfl": "fedsolve.methods.apfl:APFL",
    "fedprior": "fedsolve.methods.fedprior:FedPrior",
    "fedavg": "fedsolve.methods.fedavg:FedAvg",
    "fedavg-ft": "fedsolve.methods.fedavg_ft:FedAvgFT",
    "fedprox": "fedsolve.methods.fedprox:FedProx",
    "fedprox-ft": "fedsolve.methods.fedprox_ft:FedProxFT",
    "ditto": "fedsolve.methods.ditto:Ditto",
    "fedala": "fedsolve.methods.fedala:FedALA",
    "fedapa": "fedsolve.methods.fedapa:FedAPA",
    "fedacnnl": "fedsolve.methods.fedacnnl:FedACnnL",
    "pfedacnnl": "fedsolve.methods.pfedacnnl:PFedACnnL",
}
VARIANTS: dict[str, dict[str, str]] = {  # further methods of a name, by the parameter that asks for them
    "local": {"model": "fedsolve.methods.local_network:LocalNetwork"},
}


def method_class(name: str, settings: Mapping[str, object] | None = None) -> type[Method]:
    """The class behind a name of the catalogue; settings may ask for a variant.

    >>> method_class("local").__name__, method_class("local", {"model": "mlp:8"}).__name__
    ('Local', 'LocalNetwork')
    """
    if name not in CATALOGUE:
        raise unknown("method", name, CATALOGUE)
    homes = [home for parameter, home in VARIANTS.get(name, {}).items() if parameter in (settings or {})]
    return _at(homes[0] if homes else CATALOGUE[name])


def classes(name: str) -> list[type[Method]]:
    """All classes behind a name of the catalogue."""
    return [method_class(name), *map(_at, VARIANTS.get(name, {}).values())]


def create(name: str, settings: Mapping[str, object] | None = None) -> Method:
    """A method by name, with parameters given as values or as the texts of the command line.

    >>> create("fedhip", {"alpha": "20"})
    FedHiP(alpha=20.0, beta=1.0, intercept=False)
    """
    chosen = dict(settings or {})
    if name == "local" and chosen.get("model") == "ridge":  # how version 0.1 wrote the first of the two
        del chosen["model"]
    cls = method_class(name, chosen)
    return cls(**parameters.assign(cls, chosen))


def homes() -> list[tuple[str, str]]:
    """Module and class of every method, without importing any."""
    places = [*CATALOGUE.values(), *(home for own in VARIANTS.values() for home in own.values())]
    return [(module, attribute) for module, _, attribute in (place.partition(":") for place in places)]


def _at(home: str) -> type[Method]:
    module, _, attribute = home.partition(":")
    return cast("type[Method]", getattr(importlib.import_module(module), attribute))
