"""A segment op whose rows are cut over devices: states of all segments go from shard to shard.

As in :mod:`.pieces`, the code runs on every device with its shard. Rows of a segment are folded in
their order, so a sweep has as many steps as there are devices: in each, one device folds its rows
behind the states of those before it and hands them on. Then all of them know the last states.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..core.declare import Role
from ..core.problem import Problem
from ..cut import Piece, SegmentCut, warm
from ..cut.text import cut_of, text_of
from ..errors import InvalidProblemError
from . import on_host

Shape = tuple[int, ...]
Array = np.ndarray[Any, Any]


class SegmentCutCall:
    """One direction of a segment op on shards of its rows.

    Parameters
    ----------
    problem
        The op on the uncut table.
    inputs, outputs
        Names of what is given and of what is wanted.
    local
        Rows and columns of a shard.
    names, count
        The mesh axes that cut the rows, from the outermost, and how many pieces they make.
    dtypes
        Types of the outputs.
    """

    def __init__(
        self,
        problem: Problem,
        inputs: Sequence[str],
        outputs: Sequence[str],
        local: Shape,
        names: tuple[Any, ...],
        count: int,
        dtypes: Sequence[Any],
    ):
        self.problem, self.inputs, self.outputs = problem, tuple(inputs), tuple(outputs)
        self.local, self.names, self.count = local, names, count
        self.dtypes = dict(zip(self.outputs, dtypes, strict=True))
        cut = cut_of(text_of(problem))
        assert isinstance(cut, SegmentCut)
        self.cut = cut
        if local[0] * count < problem.shape[0]:
            raise InvalidProblemError(
                f"{problem.op.name}: {count} shards of {local[0]} rows do not make "
                f"{problem.shape[0]}"
            )

    @cached_property
    def _says(self) -> dict[str, Any]:
        """What the host is told of every call."""
        return {"problem": text_of(self.problem), "inputs": self.inputs, "length": self.local[0]}

    def run(self, arrays: Sequence[Any]) -> list[Any]:
        """The outputs of this device's shard, of its operands in order."""
        kinds = zip(self.inputs, arrays, strict=True)
        warm(self.problem, tuple((n, np.dtype(a.dtype).name) for n, a in kinds))
        index = jax.lax.axis_index(self.names).astype(jnp.int32)
        states: list[Any] = []
        fronts: list[Any] = []
        for k in range(len(self.cut.sweeps)):
            total, front = self._folded(k, index, arrays, states, fronts)
            states.append(total)
            if k == 0 and self.cut.keeps_fronts:
                fronts.append(front)
        op = self.problem.op
        made: dict[str, Any] = {}
        rows = [n for n in self.outputs if op.operand(n).role is Role.ROW]
        elements = [n for n in self.outputs if n not in rows]
        if elements:
            told = (index, *arrays, *states, *fronts)
            made |= self._made("segment_results", elements, self.local, told)
        if rows:
            sides = zip(self.inputs, arrays, strict=True)
            held = [a for n, a in sides if op.operand(n).role is Role.ROW]
            shape = (self.problem.num_segments, self.local[1])
            made |= self._made("segment_rows", rows, shape, (*held, *states))
        return [made[n] for n in self.outputs]

    def _made(self, name: str, outputs: list[str], shape: Shape, told: Sequence[Any]) -> Any:
        results = [jax.ShapeDtypeStruct(shape, self.dtypes[n]) for n in outputs]
        says = {**self._says, "outputs": outputs}
        return dict(zip(outputs, on_host.call(name, says, results, *_alike(*told)), strict=True))

    def _folded(
        self, sweep: int, index: Any, arrays: Any, states: Any, fronts: Any
    ) -> tuple[Any, Any]:
        """The states behind all rows, as all devices know them, and those in front of this shard.

        States are pairs of 32-bit words: they stay float64 without x64.
        """
        size = 2 * len(self.cut.sweeps[sweep].monoid.state)
        shape = (self.problem.num_segments, self.local[1], size)
        result = jax.ShapeDtypeStruct(shape, np.uint32)
        says = {**self._says, "sweep": sweep}
        following = [(k, k + 1) for k in range(self.count - 1)]

        def step(turn: Any, held: Any) -> Any:
            carry, front, behind = held
            told = _alike(index, turn, *arrays, *states, *fronts, carry)
            (own,) = on_host.call("segment_states", says, [result], *told)
            mine = index == turn
            front, behind = jnp.where(mine, carry, front), jnp.where(mine, own, behind)
            return jax.lax.ppermute(own, self.names, following), front, behind

        nothing = jnp.zeros(shape, np.uint32)
        *_, nothing = _alike(index, *arrays, nothing)
        _, front, behind = jax.lax.fori_loop(0, self.count, step, (nothing, nothing, nothing))
        last = jnp.where(index == self.count - 1, behind, jnp.zeros_like(behind))
        return jax.lax.psum(last, self.names), front


def _alike(*arrays: Any) -> list[Any]:
    from .primitives import varying_alike

    return varying_alike(*arrays)


# On the host.


def _held(says: dict[str, Any], index: Array, given: Sequence[Array]) -> tuple[SegmentCut, Piece]:
    """The op, and the rows of this device."""
    cut = cut_of(says["problem"])
    assert isinstance(cut, SegmentCut)
    start = min(int(index) * says["length"], cut.problem.shape[0])
    stop = min(start + says["length"], cut.problem.shape[0])
    held = dict(zip(says["inputs"], given, strict=True))
    for o in cut.reads:
        if o.role in (Role.ELEMENT, Role.IDS):
            held[o.name] = held[o.name][: stop - start]
    return cut, Piece({o.name: held[o.name] for o in cut.reads}, start, {}, stop - start)


def _doubles(states: Sequence[Array]) -> list[Array]:
    return [s.view(np.float64) for s in states]


@on_host.serves
def segment_states(says: dict[str, Any], operands: list[Array], results: list[Array]) -> None:
    """The states behind this device's rows in its turn, those in front of them otherwise."""
    index, turn, *rest = operands
    count, sweep = len(says["inputs"]), says["sweep"]
    *known, carry = _doubles(rest[count:])
    into = results[0].view(np.float64)
    if int(index) != int(turn):
        into[...] = carry
        return
    cut, piece = _held(says, index, rest[:count])
    if not int(index):
        carry = cut.begin(sweep, into.shape[1])
    front = carry
    if sweep and cut.keeps_fronts:
        *known, front = known
        front = front if int(index) else cut.begin(0, into.shape[1])
    into[...] = cut.fold(sweep, piece, known, carry, front if cut.keeps_fronts else None)


@on_host.serves
def segment_results(says: dict[str, Any], operands: list[Array], results: list[Array]) -> None:
    """The rows of this device's shard."""
    index, *rest = operands
    count = len(says["inputs"])
    cut, piece = _held(says, index, rest[:count])
    known, front = _doubles(rest[count:]), None
    if cut.keeps_fronts:
        *known, front = known
        front = front if int(index) else cut.begin(0, results[0].shape[1])
    found = cut.apply(piece, known, front) if piece.length else {}
    for name, into in zip(says["outputs"], results, strict=True):
        into[piece.length :] = 0
        if piece.length:
            into[: piece.length] = found[name]


@on_host.serves
def segment_rows(says: dict[str, Any], operands: list[Array], results: list[Array]) -> None:
    """The rows of segments."""
    cut = cut_of(says["problem"])
    assert isinstance(cut, SegmentCut)
    names = [o.name for o in cut.problem.reads if o.role is Role.ROW and o.name in says["inputs"]]
    given = dict(zip(names, operands, strict=False))
    used = {o.name: given[o.name] for o in cut.reads if o.role is Role.ROW}
    found = cut.finish(_doubles(operands[len(names) :]), used)
    for name, into in zip(says["outputs"], results, strict=True):
        into[...] = found[name]
