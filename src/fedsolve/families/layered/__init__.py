"""What methods share that train networks layer by layer: descriptions, shapes, forward passes, sums of a layer.

`description` and `stages` say what a network is, `targets` what its layers are fitted to, `forward` takes samples
through it, `layers` fits its layers, `settings` holds the parameters and the steps that methods have in common,
`groups` trains a network for each of several groups, `own` makes one a client's own. `boosting` and `heads` are for
networks whose samples have a state that grows block by block.
"""

from fedsolve.families.layered.description import Network, parse
from fedsolve.families.layered.forward import SCALES, design, mean_rows, prepare, stacked, unstacked
from fedsolve.families.layered.stages import Stage
from fedsolve.families.layered.targets import TARGETS, codes, encoding

__all__ = [
    "SCALES",
    "TARGETS",
    "Network",
    "Stage",
    "codes",
    "design",
    "encoding",
    "mean_rows",
    "parse",
    "prepare",
    "stacked",
    "unstacked",
]
