"""The catalogue: one line a method. Modules are imported when a method is first used."""

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


def method_class(name: str) -> type[Method]:
    """The class behind a name of the catalogue."""
    if name not in CATALOGUE:
        raise unknown("method", name, CATALOGUE)
    module, _, attribute = CATALOGUE[name].partition(":")
    return cast("type[Method]", getattr(importlib.import_module(module), attribute))


def create(name: str, settings: Mapping[str, object] | None = None) -> Method:
    """A method by name, with parameters given as values or as the texts of the command line."""
    cls = method_class(name)
    return cls(**parameters.assign(cls, settings or {}))
