"""What methods share that train networks layer by layer: descriptions, shapes, forward passes, sums of a layer.

`description` and `stages` say what a network is, `forward` takes samples through it, `layers` fits its layers,
`settings` holds the parameters and the steps that methods have in common.
"""

from fedsolve.families.layered.description import Network, parse
from fedsolve.families.layered.forward import SCALES, design, encoding, mean_rows, prepare, stacked, unstacked
from fedsolve.families.layered.stages import Stage

__all__ = [
    "SCALES",
    "Network",
    "Stage",
    "design",
    "encoding",
    "mean_rows",
    "parse",
    "prepare",
    "stacked",
    "unstacked",
]
