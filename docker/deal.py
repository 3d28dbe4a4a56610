#!/usr/bin/env python
"""Data for a trial: the digits of scikit-learn, dealt out to the sites of a folder of `fedsolve deploy init`."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

import fedsolve as fs


def main(folder: Path) -> None:
    """Write data.npz for each site."""
    sites = sorted((folder / "sites").iterdir())
    digits = fs.load("digits").split(fs.dirichlet(2), clients=len(sites), test=0.0, seed=1)
    for site, client in zip(sites, digits.clients.values(), strict=True):
        np.savez(site / "data.npz", x=client.train.inputs, y=client.train.labels)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
