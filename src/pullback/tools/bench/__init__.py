"""The benchmark: driven by the catalog, checked before it is timed, with peers in the same run.

>>> from pullback.tools.bench import QUICK, Settings, cells, named_ops, run
>>> cases = cells(QUICK, ops=named_ops(["softmax"]), shapes=[(64, 64)], axes=[-1])
>>> report = run(cases, Settings(rounds=1, budget=0.01))
>>> report["cells"][0]["check"]["ok"]
True
"""

from ..case import Case
from .cells import (
    DIRECTIONS,
    FULL,
    ORDERS,
    QUICK,
    SIZES,
    Grid,
    cells,
    default_ops,
    find_op,
    named_ops,
)
from .far_behind import far_behind
from .harness import Settings, heading, measure, run
from .load import busy_share, warnings
from .peers import PEERS, QUICK_PEERS, installed
from .saving import Kept
from .summary import Change, Figures, compare, figures, objection, summarise

__all__ = [
    "DIRECTIONS",
    "FULL",
    "ORDERS",
    "PEERS",
    "QUICK",
    "QUICK_PEERS",
    "SIZES",
    "Case",
    "Change",
    "Figures",
    "Grid",
    "Kept",
    "Settings",
    "busy_share",
    "cells",
    "compare",
    "default_ops",
    "far_behind",
    "figures",
    "find_op",
    "heading",
    "installed",
    "measure",
    "named_ops",
    "objection",
    "run",
    "summarise",
    "warnings",
]
