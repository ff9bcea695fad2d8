"""An op whose axis is cut over devices: local work, and one gather of states for each sweep.

Written for code that runs on every device with its shard: inside ``jax.shard_map``, and in the
program that XLA's partitioner puts in the place of an op. Shapes are alike on all devices, so what
moves between neighbours to put a cut on the grid of blocks moves as a halo of one width.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..core.declare import Operand, Role
from ..core.problem import Problem
from ..cut import Cut, Piece, settled, warm
from ..cut.text import cut_of, text_of
from ..errors import InvalidProblemError, UnsupportedError
from . import on_host

Shape = tuple[int, ...]
Array = np.ndarray[Any, Any]


class CutCall:
    """One direction of an op on shards of its axis.

    Parameters
    ----------
    problem
        The op on the uncut operands.
    inputs, outputs
        Names of what is given and of what is wanted.
    local
        Shape of a shard.
    names, count
        The mesh axes that cut the op's axis, from the outermost, and how many pieces they make.
    dtypes
        Types of the outputs.
    axis
        The dimension that is cut.
    tracked
        Whether JAX keeps track of what varies over devices, as inside ``jax.shard_map``.
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
        axis: int,
        tracked: bool = False,
    ):
        self.problem, self.inputs, self.outputs = problem, tuple(inputs), tuple(outputs)
        self.local, self.names, self.count, self.dtypes = local, names, count, tuple(dtypes)
        self.tracked = tracked
        op = problem.op.name
        cut = cut_of(text_of(problem))
        assert isinstance(cut, Cut)
        self.cut = cut
        self.axis = axis
        outer = problem.axes[: problem.axes.index(axis)]
        if any(problem.shape[a] > 1 for a in outer):
            raise UnsupportedError(
                f"{op}: of its axes {problem.axes} only the first may be sharded, got shards of "
                f"{local} of {problem.shape}"
            )
        self.step = math.prod(problem.shape[a] for a in problem.axes if a > self.axis)
        length, extent = local[self.axis], problem.shape[self.axis]
        if length * count < extent:
            raise InvalidProblemError(f"{op}: {count} shards of {length} do not make {extent}")
        self.length = length * self.step
        self.bounds = [min(k * self.length, extent * self.step) for k in range(count + 1)]
        self.grid = list(settled(cut, self.bounds))
        starts = [k * self.length for k in range(count)]
        there = [k for k in range(count) if self.grid[k] < self.grid[k + 1]]
        self.low = max([0, *(starts[k] - self.grid[k] for k in there)])
        ends = (self.grid[k + 1] - starts[k] - self.length for k in there)
        self.high = max([0, *ends])

    @cached_property
    def _says(self) -> dict[str, Any]:
        """What the host is told of every call."""
        starts = [k * self.length - self.low for k in range(self.count)]
        return {
            "problem": text_of(self.problem),
            "inputs": self.inputs,
            "grid": self.grid,
            "starts": starts,
            "batch": self._batch,
            "length": self.low + self.length + self.high,
        }

    @property
    def _kept(self) -> list[int]:
        return [d for d in range(len(self.local)) if d not in self.problem.axes]

    @property
    def _batch(self) -> Shape:
        return tuple(self.local[d] for d in self._kept)

    def run(self, arrays: Sequence[Any]) -> list[Any]:
        """The outputs of this device's shard, of its operands in order."""
        cut, problem = self.cut, self.problem
        # A device that compiles would keep the others waiting, and XLA gives up after 40 seconds.
        kinds = zip(self.inputs, arrays, strict=True)
        warm(problem, tuple((n, np.dtype(a.dtype).name) for n, a in kinds))
        operands = [
            self._to_rows(problem.op.operand(n), a)
            for n, a in zip(self.inputs, arrays, strict=True)
        ]
        index = jax.lax.axis_index(self.names).astype(jnp.int32)
        edges: list[Any] = []
        if cut.neighbours:
            shape = (*self._batch, len(cut.neighbours))
            edges = [self._gathered(self._call("cut_edges", shape, index, *operands))]
        blocks = max(
            -(-(b - a) // cut.block) for a, b in zip(self.grid, self.grid[1:], strict=False)
        )
        gathered: list[Any] = []
        for k, sweep in enumerate(cut.sweeps):
            shape = (*self._batch, blocks, len(sweep.monoid.state))
            told = (index, *operands, *edges, *gathered)
            own = self._call("cut_states", shape, *told, sweep=k)
            gathered.append(self._gathered(own))
        made: dict[str, Any] = {}
        wanted = dict(zip(self.outputs, self.dtypes, strict=True))
        rows = [n for n in self.outputs if problem.op.operand(n).role is Role.ROW]
        elements = [n for n in self.outputs if n not in rows]
        if elements:
            region = (*self._batch, self.low + self.length + self.high)
            results = [jax.ShapeDtypeStruct(region, wanted[n]) for n in elements]
            says = {**self._says, "outputs": elements}
            told = (index, *operands, *edges, *gathered)
            found = on_host.call("cut_results", says, results, *_alike(*told))
            made |= dict(zip(elements, map(self._from_rows, found), strict=True))
        if rows:
            given = [
                a
                for n, a in zip(self.inputs, operands, strict=True)
                if problem.op.operand(n).role is Role.ROW
            ]
            results = [jax.ShapeDtypeStruct(self._batch, wanted[n]) for n in rows]
            says = {**self._says, "outputs": rows}
            found = on_host.call("cut_rows", says, results, *_alike(*given, *gathered))
            for n, a in zip(rows, found, strict=True):
                made[n] = jnp.expand_dims(a, problem.axes)
        return [made[n] for n in self.outputs]

    def _call(self, name: str, shape: Shape, *operands: Any, **more: Any) -> Any:
        """States, of which the last dimension has two words of 32 bits for each."""
        result = jax.ShapeDtypeStruct((*shape[:-1], 2 * shape[-1]), np.uint32)
        return on_host.call(name, {**self._says, **more}, [result], *_alike(*operands))[0]

    def _gathered(self, own: Any) -> Any:
        if self.tracked:
            return jax.lax.all_gather(own, self.names, to="invarying")
        return jax.lax.all_gather(own, self.names)

    # Layout.

    def _to_rows(self, o: Operand, a: Any) -> Any:
        kept, axes = self._kept, self.problem.axes
        if o.role is Role.ROW:
            return a.reshape([a.shape[d] for d in kept])
        a = jnp.broadcast_to(a, self.local).transpose(*kept, *axes)
        return self._with_halo(a.reshape(*self._batch, self.length))

    def _from_rows(self, a: Any) -> Any:
        a = self._returned(a)
        order = [*self._kept, *self.problem.axes]
        a = a.reshape([self.local[d] for d in order])
        return a.transpose(np.argsort(order))

    # What moves between neighbours.

    def _shifted(self, a: Any, by: int) -> Any:
        """What the device ``by`` places further on has; zeros where there is none."""
        pairs = [(k + by, k) for k in range(self.count) if 0 <= k + by < self.count]
        return jax.lax.ppermute(a, self.names, pairs)

    def _with_halo(self, a: Any) -> Any:
        parts = [a]
        for width, side in ((self.low, -1), (self.high, 1)):
            done, by = 0, 1
            while done < width:
                part = min(self.length, width - done)
                edge = a[..., self.length - part :] if side < 0 else a[..., :part]
                moved = self._shifted(edge, side * by)
                parts = [moved, *parts] if side < 0 else [*parts, moved]
                done, by = done + part, by + 1
        return jnp.concatenate(_alike(*parts), -1) if len(parts) > 1 else a

    def _returned(self, region: Any) -> Any:
        """The results of a shard, of what every device made of the blocks it had."""
        if not (self.low or self.high):
            return region
        positions = np.arange(self.count * self.length).reshape(self.count, self.length)
        owners = np.searchsorted(self.grid, positions, side="right") - 1
        owners = np.clip(owners, 0, self.count - 1) - np.arange(self.count)[:, None]
        mine = jnp.asarray(owners.astype(np.int32))[jax.lax.axis_index(self.names)]
        found = None
        for by in np.unique(owners).tolist():
            # This shard in the region of the device ``by`` places further on.
            first = self.low - by * self.length
            start, stop = max(first, 0), min(first + self.length, region.shape[-1])
            if start >= stop:
                continue
            part = region[..., start:stop]
            spare = [(0, 0)] * (region.ndim - 1)
            # What it has for the device ``by`` places before it.
            part = jnp.pad(part, [*spare, (start - first, first + self.length - stop)])
            part = self._shifted(part, by) if by else part
            found = part if found is None else jnp.where(mine == by, part, found)
        return found


def _alike(*arrays: Any) -> list[Any]:
    from .primitives import varying_alike

    return varying_alike(*arrays)


# On the host.


def _held(says: dict[str, Any], operands: list[Array]) -> tuple[Cut, int, Piece, list[Array]]:
    """The op, the place of this device, its piece, and what follows the operands."""
    cut = cut_of(says["problem"])
    assert isinstance(cut, Cut)
    at, count = int(operands[0]), len(says["inputs"])
    given = dict(zip(says["inputs"], operands[1:], strict=False))
    grid, start = says["grid"], says["starts"][at]
    low, high = grid[at], grid[at + 1]
    held = {}
    for o in cut.reads:
        array = given[o.name]
        if o.role is Role.ELEMENT:
            array = array[..., low - start : high - start] if low < high else array[..., :0]
        held[o.name] = array
    return cut, at, Piece(held, low, {}, high - low), operands[1 + count :]


def _with_edges(cut: Cut, at: int, piece: Piece, rest: list[Array], grid: list[int]) -> tuple:
    """The piece with the elements in front of it, and the gathered states that follow."""
    if not cut.neighbours:
        return piece, rest
    edges = rest[0].view(np.float64)
    order = range(at + 1, len(grid) - 1) if cut.problem.reverse else range(at - 1, -1, -1)
    for k in order:
        if grid[k] < grid[k + 1]:
            before = {n: edges[k][..., j] for j, n in enumerate(cut.neighbours)}
            return Piece(piece.operands, piece.start, before, piece.length), rest[1:]
    return piece, rest[1:]


def _joined(
    cut: Cut, at: int, says: dict[str, Any], gathered: list[Array], rows: dict[str, Array]
) -> tuple[list[Array], list[Array]]:
    """For every sweep, the state a piece asks for, and that behind the rows."""
    grid = says["grid"]
    here, behind = [], []
    for k, states in enumerate(gathered):
        sweep = cut.sweeps[k]
        state = cut.begin(k, tuple(says["batch"]), rows)
        front = state
        order = range(len(grid) - 1)
        for piece in order if sweep.forward else reversed(order):
            if piece == at:
                front = state
            blocks = -(-(grid[piece + 1] - grid[piece]) // cut.block)
            if blocks:
                own = states[piece].view(np.float64)[..., :blocks, :]
                state = cut.combine(k, state, own)
        here.append(state if sweep.whole else front)
        behind.append(state)
    return here, behind


def _rows(cut: Cut, piece: Piece) -> dict[str, Array]:
    return {o.name: piece.operands[o.name] for o in cut.reads if o.role is Role.ROW}


@on_host.serves
def cut_edges(says: dict[str, Any], operands: list[Array], results: list[Array]) -> None:
    """The last elements of a piece in forward order."""
    cut, _, piece, _ = _held(says, operands)
    into = results[0].view(np.float64)
    into[...] = 0.0
    if piece.length:
        for k, edge in enumerate(cut.edge(piece).values()):
            into[..., k] = edge


@on_host.serves
def cut_states(says: dict[str, Any], operands: list[Array], results: list[Array]) -> None:
    """The states of the blocks of a piece."""
    cut, at, piece, rest = _held(says, operands)
    piece, gathered = _with_edges(cut, at, piece, rest, says["grid"])
    here, _ = _joined(cut, at, says, gathered, _rows(cut, piece))
    blocks = -(-piece.length // cut.block)
    own = [states[at].view(np.float64)[..., :blocks, :] for states in gathered]
    found = cut.summary(says["sweep"], piece, here, own)
    into = results[0].view(np.float64)
    into[...] = 0.0
    into[..., : found.shape[-2], :] = found


@on_host.serves
def cut_results(says: dict[str, Any], operands: list[Array], results: list[Array]) -> None:
    """The results of a piece with an element for every position."""
    cut, at, piece, rest = _held(says, operands)
    piece, gathered = _with_edges(cut, at, piece, rest, says["grid"])
    here, _ = _joined(cut, at, says, gathered, _rows(cut, piece))
    start = says["starts"][at]
    for into in results:
        into[...] = 0
    if piece.length:
        found = cut.apply(piece, here)
        place = slice(piece.start - start, piece.start - start + piece.length)
        for name, into in zip(says["outputs"], results, strict=True):
            into[..., place] = found[name]


@on_host.serves
def cut_rows(says: dict[str, Any], operands: list[Array], results: list[Array]) -> None:
    """The results with one element for each row."""
    cut = cut_of(says["problem"])
    assert isinstance(cut, Cut)
    rows = {o.name for o in cut.reads if o.role is Role.ROW}
    names = [n for n in says["inputs"] if n in rows]
    given = dict(zip(names, operands, strict=False))
    _, behind = _joined(cut, -1, says, operands[len(names) :], given)
    found = cut.finish(behind, given)
    for name, into in zip(says["outputs"], results, strict=True):
        into[...] = found[name]
