"""Personalised federated learning that solves instead of descending.

    import fedsolve as fs
    federation = fs.load("digits").split(fs.dirichlet(0.1), clients=20, seed=0)
    result = fs.run(fs.FedHiP(), federation)

Names are imported when they are first used: `import fedsolve` alone loads nothing else.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedsolve.checks import check_method as check_method
    from fedsolve.data.catalog import load as load
    from fedsolve.data.federation import Client as Client
    from fedsolve.data.federation import Federation as Federation
    from fedsolve.data.large import stream as stream
    from fedsolve.data.partition import by_client as by_client
    from fedsolve.data.partition import classes as classes
    from fedsolve.data.partition import dirichlet as dirichlet
    from fedsolve.data.partition import iid as iid
    from fedsolve.data.partition import neighbours as neighbours
    from fedsolve.data.partition import power_law as power_law
    from fedsolve.data.partition import shards as shards
    from fedsolve.data.reading import Reading as Reading
    from fedsolve.data.samples import Samples as Samples
    from fedsolve.data.table import Table as Table
    from fedsolve.data.target import Classes as Classes
    from fedsolve.data.target import Numbers as Numbers
    from fedsolve.data.task import Task as Task
    from fedsolve.data.workers import Workers as Workers
    from fedsolve.errors import DataError as DataError
    from fedsolve.errors import FedsolveError as FedsolveError
    from fedsolve.errors import LevelWarning as LevelWarning
    from fedsolve.errors import ParameterError as ParameterError
    from fedsolve.errors import PrecisionWarning as PrecisionWarning
    from fedsolve.errors import SingularError as SingularError
    from fedsolve.errors import StorageError as StorageError
    from fedsolve.errors import TrackingWarning as TrackingWarning
    from fedsolve.ledger.store import Ledger as Ledger
    from fedsolve.method import Group as Group
    from fedsolve.method import Method as Method
    from fedsolve.method import Personal as Personal
    from fedsolve.method import Plan as Plan
    from fedsolve.method import Server as Server
    from fedsolve.method import Site as Site
    from fedsolve.methods import create as create
    from fedsolve.methods.afl import AFL as AFL
    from fedsolve.methods.apfl import APFL as APFL
    from fedsolve.methods.apple import APPLE as APPLE
    from fedsolve.methods.baffle import BAFFLE as BAFFLE
    from fedsolve.methods.deepafl import DeepAFL as DeepAFL
    from fedsolve.methods.ditto import Ditto as Ditto
    from fedsolve.methods.fedacnnl import FedACnnL as FedACnnL
    from fedsolve.methods.fedala import FedALA as FedALA
    from fedsolve.methods.fedamp import FedAMP as FedAMP
    from fedsolve.methods.fedapa import FedAPA as FedAPA
    from fedsolve.methods.fedas import FedAS as FedAS
    from fedsolve.methods.fedavg import FedAvg as FedAvg
    from fedsolve.methods.fedavg_ft import FedAvgFT as FedAvgFT
    from fedsolve.methods.feddbe import FedDBE as FedDBE
    from fedsolve.methods.feddisco import FedDisco as FedDisco
    from fedsolve.methods.feddyn import FedDyn as FedDyn
    from fedsolve.methods.fedgen import FedGen as FedGen
    from fedsolve.methods.fedgh import FedGH as FedGH
    from fedsolve.methods.fedhip import FedHiP as FedHiP
    from fedsolve.methods.fedntd import FedNTD as FedNTD
    from fedsolve.methods.fedpac import FedPAC as FedPAC
    from fedsolve.methods.fedpcl import FedPCL as FedPCL
    from fedsolve.methods.fedphp import FedPHP as FedPHP
    from fedsolve.methods.fedprior import FedPrior as FedPrior
    from fedsolve.methods.fedproto import FedProto as FedProto
    from fedsolve.methods.fedprox import FedProx as FedProx
    from fedsolve.methods.fedprox_ft import FedProxFT as FedProxFT
    from fedsolve.methods.fedselect import FedSelect as FedSelect
    from fedsolve.methods.fedzo import FedZO as FedZO
    from fedsolve.methods.glm import GLM as GLM
    from fedsolve.methods.local import Local as Local
    from fedsolve.methods.local_network import LocalNetwork as LocalNetwork
    from fedsolve.methods.mixed import Mixed as Mixed
    from fedsolve.methods.moon import MOON as MOON
    from fedsolve.methods.pfedacnnl import PFedACnnL as PFedACnnL
    from fedsolve.methods.pfedhn import PFedHN as PFedHN
    from fedsolve.methods.pfedla import PFedLA as PFedLA
    from fedsolve.methods.pfedme import PFedMe as PFedMe
    from fedsolve.methods.pfedzo import PFedZO as PFedZO
    from fedsolve.model import Model as Model
    from fedsolve.model import load_model as load_model
    from fedsolve.moments import Moments as Moments
    from fedsolve.privacy.noise import Noise as Noise
    from fedsolve.result import Result as Result
    from fedsolve.runtime.devices import Devices as Devices
    from fedsolve.runtime.gather import Secure as Secure
    from fedsolve.runtime.inprocess import run as run
    from fedsolve.solver import Solution as Solution
    from fedsolve.solver import solve as solve
    from fedsolve.study.estimator import estimator as estimator
    from fedsolve.study.federated import FederatedClassifier as FederatedClassifier
    from fedsolve.study.federated import FederatedRegressor as FederatedRegressor
    from fedsolve.study.onnx import to_onnx as to_onnx

__version__ = "0.2.0.dev0"

_HOMES = {
    "fedsolve.checks": ("check_method",),
    "fedsolve.data.catalog": ("load",),
    "fedsolve.data.federation": ("Client", "Federation"),
    "fedsolve.data.large": ("stream",),
    "fedsolve.data.partition": ("by_client", "classes", "dirichlet", "iid", "neighbours", "power_law", "shards"),
    "fedsolve.data.reading": ("Reading",),
    "fedsolve.data.samples": ("Samples",),
    "fedsolve.data.table": ("Table",),
    "fedsolve.data.target": ("Classes", "Numbers"),
    "fedsolve.data.task": ("Task",),
    "fedsolve.data.workers": ("Workers",),
    "fedsolve.errors": (
        "DataError",
        "FedsolveError",
        "ParameterError",
        "LevelWarning",
        "PrecisionWarning",
        "SingularError",
        "StorageError",
        "TrackingWarning",
    ),
    "fedsolve.ledger.store": ("Ledger",),
    "fedsolve.method": ("Group", "Method", "Personal", "Plan", "Server", "Site"),
    "fedsolve.methods": ("create",),
    "fedsolve.model": ("Model", "load_model"),
    "fedsolve.moments": ("Moments",),
    "fedsolve.privacy.noise": ("Noise",),
    "fedsolve.result": ("Result",),
    "fedsolve.runtime.devices": ("Devices",),
    "fedsolve.runtime.gather": ("Secure",),
    "fedsolve.runtime.inprocess": ("run",),
    "fedsolve.solver": ("Solution", "solve"),
    "fedsolve.study.estimator": ("estimator",),
    "fedsolve.study.federated": ("FederatedClassifier", "FederatedRegressor"),
    "fedsolve.study.onnx": ("to_onnx",),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name in _HOME_OF:
        return getattr(importlib.import_module(_HOME_OF[name]), name)
    if name[:1].isupper():  # a method of the catalogue, by its class name
        from fedsolve.methods import homes

        for module, attribute in homes():
            if attribute == name:
                return getattr(importlib.import_module(module), name)
    raise AttributeError(f"module 'fedsolve' has no attribute {name!r}")


def __dir__() -> list[str]:
    from fedsolve.methods import homes

    return sorted([*_HOME_OF, *(attribute for _, attribute in homes()), "__version__"])
