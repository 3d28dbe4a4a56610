"""The catalogue: one line per method. Modules are imported when a method is first used.

`local` stands for two methods, one per family: ridge, and a network where `model` names one.
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Mapping
from typing import cast

from fedsolve import parameters
from fedsolve.errors import DataError, ParameterError, unknown
from fedsolve.method import Method
from fedsolve.modules import attribute

CATALOGUE: dict[str, str] = {
    "local": "fedsolve.methods.local:Local",
    "afl": "fedsolve.methods.afl:AFL",
    "fedhip": "fedsolve.methods.fedhip:FedHiP",
    "apfl": "fedsolve.methods.apfl:APFL",
    "fedprior": "fedsolve.methods.fedprior:FedPrior",
    "mixed": "fedsolve.methods.mixed:Mixed",
    "glm": "fedsolve.methods.glm:GLM",
    "deepafl": "fedsolve.methods.deepafl:DeepAFL",
    "fedavg": "fedsolve.methods.fedavg:FedAvg",
    "fedavg-ft": "fedsolve.methods.fedavg_ft:FedAvgFT",
    "fedprox": "fedsolve.methods.fedprox:FedProx",
    "fedprox-ft": "fedsolve.methods.fedprox_ft:FedProxFT",
    "ditto": "fedsolve.methods.ditto:Ditto",
    "pfedme": "fedsolve.methods.pfedme:PFedMe",
    "pfedzo": "fedsolve.methods.pfedzo:PFedZO",
    "moon": "fedsolve.methods.moon:MOON",
    "fedntd": "fedsolve.methods.fedntd:FedNTD",
    "feddyn": "fedsolve.methods.feddyn:FedDyn",
    "fedgen": "fedsolve.methods.fedgen:FedGen",
    "feddisco": "fedsolve.methods.feddisco:FedDisco",
    "fedzo": "fedsolve.methods.fedzo:FedZO",
    "baffle": "fedsolve.methods.baffle:BAFFLE",
    "feddbe": "fedsolve.methods.feddbe:FedDBE",
    "fedphp": "fedsolve.methods.fedphp:FedPHP",
    "fedselect": "fedsolve.methods.fedselect:FedSelect",
    "fedala": "fedsolve.methods.fedala:FedALA",
    "fedas": "fedsolve.methods.fedas:FedAS",
    "fedapa": "fedsolve.methods.fedapa:FedAPA",
    "fedproto": "fedsolve.methods.fedproto:FedProto",
    "fedgh": "fedsolve.methods.fedgh:FedGH",
    "fedpac": "fedsolve.methods.fedpac:FedPAC",
    "fedpcl": "fedsolve.methods.fedpcl:FedPCL",
    "fedamp": "fedsolve.methods.fedamp:FedAMP",
    "apple": "fedsolve.methods.apple:APPLE",
    "pfedhn": "fedsolve.methods.pfedhn:PFedHN",
    "pfedla": "fedsolve.methods.pfedla:PFedLA",
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


def own_class(spec: str) -> type[Method]:
    """A method of a user's own, from package.module:Class, where the module may lie in the current folder.

    Only for texts from the command line or from code: what a file names is looked up in the catalogue alone.
    """
    cls = attribute(spec, "method")
    if not isinstance(cls, type) or not dataclasses.is_dataclass(cls):
        kind = "a class that is no dataclass" if isinstance(cls, type) else f"a {type(cls).__name__}"
        raise ParameterError(f"method {spec!r} must be a dataclass that is a fedsolve.Method; got {kind}")
    members = [*Method.__annotations__, *(name for name in vars(Method) if not name.startswith("_"))]
    missing = [name for name in dict.fromkeys(members) if not hasattr(cls, name)]
    if missing:
        raise ParameterError(f"method {spec!r} lacks {', '.join(missing)}; see fedsolve.Method for what they are")
    own = cast("type[Method]", cls)
    if own.name in CATALOGUE:
        raise ParameterError(f"method {spec!r} is called {own.name!r} as one of the catalogue; give it another name")
    return own


def classes(name: str) -> list[type[Method]]:
    """All classes behind a name of the catalogue."""
    return [method_class(name), *map(_at, VARIANTS.get(name, {}).values())]


def create(name: str, settings: Mapping[str, object] | None = None) -> Method:
    """A method by name, with parameters given as values or as the texts of the command line.

    >>> create("fedhip", {"alpha": "20"})
    FedHiP(alpha=20.0, beta='auto', intercept=True, thin=False)
    """
    values = dict(settings or {})
    if name == "local" and values.get("model") == "ridge":  # how version 0.1 wrote the first of the two
        del values["model"]
    cls = method_class(name, values)
    return cls(**parameters.assign(cls, values))


def restored(name: str, settings: Mapping[str, object], kind: type[Method] | None = None, *, model: str = "") -> Method:
    """The method that a file or a message names. Nothing is imported because they say so.

    `kind` is its class, where that is not of the catalogue. `model` is the one network of a user's own that its
    settings may name, package.module:factory, given here by whoever lets it be imported.

    >>> restored("fedavg", {"model": "mlp:8"}).name
    'fedavg'
    >>> restored("fedavg", {"model": "antigravity:x"})
    Traceback (most recent call last):
    fedsolve.errors.DataError: its network is 'antigravity:x', which is not imported because a file or a message names \
it; if you trust it, give it here: --model antigravity:x (model= in Python; MODEL in a site's site.env)
    """
    if kind is None and name not in CATALOGUE:
        way_out = "if it is your own, give its class: load_model(path, Class) or --method package.module:Class"
        raise DataError(f"unknown method {name!r}; {way_out}")
    if not isinstance(settings, Mapping):
        raise DataError(f"the settings of its method must be parameters by name; got {settings!r}")
    method = kind(**settings) if kind else create(name, settings)
    if method.name != name:
        raise DataError(f"it is a model of {name!r}, not of {method.name!r}")
    for spec in parameters.imported(method).values():
        if spec != model:
            raise DataError(
                f"its network is {spec!r}, which is not imported because a file or a message names it; if you trust "
                f"it, give it here: --model {spec} (model= in Python; MODEL in a site's site.env)"
            )
    return method


def homes() -> list[tuple[str, str]]:
    """Module and class of every method, without importing any."""
    places = [*CATALOGUE.values(), *(home for variants in VARIANTS.values() for home in variants.values())]
    return [(module, attribute) for module, _, attribute in (place.partition(":") for place in places)]


def _at(home: str) -> type[Method]:
    module, _, attribute = home.partition(":")
    return cast("type[Method]", getattr(importlib.import_module(module), attribute))
