"""States of blocks joined in order: a launch of its own, on packed float64."""

from __future__ import annotations

from array import array
from functools import cache
from typing import Any

import numpy as np

from ..formulas.compose import compose
from ..formulas.record import Monoid, Pass, RowFormula
from ..threads import get_num_threads
from . import pool, state_words
from .compile import Kernel, compile_kernel

Array = np.ndarray[Any, Any]


@cache
def _kernel(monoid: Monoid, element: str) -> Kernel:
    # Exponentials of float64 are other ones; else a fold is the same for every element type.
    element = "f64" if element == "f64" else "f32"

    def make() -> Any:
        from .loops.states import make_join_kernel

        return make_join_kernel(monoid, element)

    return compile_kernel(f"join-{element}", RowFormula((Pass(monoid),)), make)


@cache
def of_states(monoid: Monoid) -> Monoid:
    """The fold of what are states already."""
    names = [f"s{k}" for k in range(len(monoid.state))]
    lift = compose("state", names, [f"return {', '.join(names)}"])
    return Monoid(lift, monoid.combine, monoid.identity, tuple(names))


def join(monoid: Monoid, element: str, front: Array, states: Array) -> tuple[Array, Array]:
    """The states behind rows, and those in front of each of their blocks.

    Parameters
    ----------
    monoid
        A fold of states, see :func:`of_states`.
    element
        The op's element type.
    front
        The states in front of rows: (rows, components), packed float64.
    states
        Those of blocks: (rows, blocks, components).
    """
    rows, blocks, _ = states.shape
    fronts, total = np.empty_like(states), np.empty_like(front)
    block = array("q", [0] * state_words.WORDS)
    block[state_words.BLOCKS] = blocks
    for place, held in (
        (state_words.FRONT, front),
        (state_words.STATES, states),
        (state_words.FRONTS, fronts),
        (state_words.TOTAL, total),
    ):
        block[place] = held.ctypes.data
    if rows:
        kernel, p = _kernel(monoid, element), block.buffer_info()[0]
        owners = (block, front, states, fronts, total)
        pool.run(kernel.address, p, rows, 2 * states.nbytes, get_num_threads(), owners)
    return total, fronts
