"""Rules for DTensors: where results lie, and what runs on the shards.

A mesh dimension that shards a dimension the op does not work along needs no communication: the op
runs on the shards. One that shards the op's axis makes every shard a piece of :mod:`pullback.cut`:
states of blocks are gathered once for each sweep, and what lies off the grid of blocks is exchanged
with neighbours. Of several axes only shards of the first are pieces of a row: shards of another are
exchanged for such. What is Partial is reduced first, as torch does for ops that are not linear.
"""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..core.declare import Operand, Role
from ..cut import Cut, SegmentCut, settled
from ..cut.text import cut_of, text_of
from ..errors import InvalidProblemError, UnsupportedError
from .autograd import hashable
from .exchange import (
    Level,
    bounds_of,
    gathered,
    length_of,
    levels_of,
    moved,
    place_of,
    resharded,
    sent_from,
)
from .forms import Form, Parameters, as_tuple, unpacked
from .graphs import constant

if TYPE_CHECKING:
    from .operations import Operation

_TENSOR = "torch.distributed.tensor"
_ruled: set[Any] = set()


def is_sharded(t: Any) -> bool:
    """Whether a tensor is a DTensor."""
    module = sys.modules.get(_TENSOR)
    return module is not None and isinstance(t, module.DTensor)


def gathered_whole(t: Any) -> Tensor:
    """A tensor as every process has it, of a DTensor too."""
    found: Tensor = t.full_tensor() if is_sharded(t) else t
    return found


def replicated(t: Tensor, like: Any) -> Any:
    """A tensor that all processes have alike, as a DTensor on the mesh of another."""
    from torch.distributed.tensor import DTensor, Replicate

    mesh = like.device_mesh
    return DTensor.from_local(t, mesh, [Replicate()] * mesh.ndim, run_check=False)


@constant
def give_rules(operation: Operation) -> bool:
    """Make the ops of an operation known to DTensor, once somebody has imported that."""
    module = sys.modules.get(_TENSOR)
    if module is None or operation in _ruled:
        return module is not None
    _ruled.add(operation)
    for form, op in operation.registered:
        torch.library.register_torch_dispatch(op, module.DTensor, _rule(form, op))
    return True


def _rule(form: Form, op: Any) -> Any:
    count = len(form.reads)

    def rule(cls: Any, func: Any, types: Any, args: Sequence[Any], kwargs: Any) -> Any:
        arguments = [*args, *(kwargs or {}).values()]
        params = hashable(tuple(arguments[count:]))
        return _Call(form, op, params, arguments[:count]).run()

    return rule


class _Call:
    """One direction of an op on DTensors.

    Attributes
    ----------
    where
        For each mesh dimension, the dimension of the problem that it shards; None if replicated.
    """

    def __init__(self, form: Form, op: Any, params: Parameters, tensors: Sequence[Any]):
        from torch.distributed.tensor import DTensor, Shard

        self.form, self.op, self.params = form, op, params
        for o, t in zip(form.reads, tensors, strict=True):
            if not isinstance(t, DTensor):
                raise InvalidProblemError(
                    f"{o.name}: expected a DTensor as the other operands of {form.op.name} are, "
                    f"got a {type(t).__name__}; distribute it first"
                )
        self.tensors: Sequence[Any] = tensors
        self.mesh = tensors[0].device_mesh
        for o, t in zip(form.reads, tensors, strict=True):
            if t.device_mesh != self.mesh:
                raise InvalidProblemError(f"{o.name}: expected a DTensor on {self.mesh}")
            for p in t.placements:
                if not (type(p) is Shard or p.is_replicate() or p.is_partial()):
                    raise UnsupportedError(
                        f"{o.name}: expected Shard, Replicate or Partial, got {p}"
                    )
        self.shape = form.shape(params, tensors)
        # Dimensions that a pointwise op has are all alike.
        works_along = form.is_segmented or form.op.parameter("axis") is not None
        self.axes = form.axes(params, len(self.shape)) if works_along else ()
        self.where = [self._sharded_by(m) for m in range(self.mesh.ndim)]

    # Placements.

    def _dims(self, o: Operand, rank: int) -> list[int | None]:
        """The dimension of the problem that each dimension of an operand is."""
        full = range(len(self.shape))
        if o.role is Role.ELEMENT or (self.form.is_segmented and o.role is Role.ROW):
            return list(full)
        if o.role is not Role.ROW:
            return list(self.axes) if o.role is Role.IDS else [None]
        axes = self.form.axes(self.params, len(self.shape))
        if rank == len(self.shape):
            return [None if d in axes else d for d in full]
        return [d for d in full if d not in axes]

    def _sharded_by(self, m: int) -> int | None:
        """The dimension of the problem that a mesh dimension shards: the first operand's word."""
        pairs = list(zip(self.form.reads, self.tensors, strict=True))
        for role in (Role.ELEMENT, Role.ROW, Role.IDS):
            for o, t in pairs:
                placement = t.placements[m]
                if o.role is not role or not placement.is_shard():
                    continue
                at = self._dims(o, t.dim())[placement.dim]
                if at is not None and not (o.role is Role.ROW and at in self.axes):
                    return at
        return None

    def _placements(self, o: Operand, rank: int) -> list[Any]:
        from torch.distributed.tensor import Replicate, Shard

        dims = self._dims(o, rank)
        if o.role is Role.ROW:
            dims = [None if d in self.axes else d for d in dims]
        return [
            Shard(dims.index(at)) if at in dims and at is not None else Replicate()
            for at in self.where
        ]

    def _local(self) -> list[Tensor]:
        """The operands' shards, all cut alike."""
        found = []
        for o, t in zip(self.form.reads, self.tensors, strict=True):
            wanted = self._placements(o, t.dim())
            if list(t.placements) != wanted:
                t = t.redistribute(self.mesh, wanted)
            local = t.to_local()
            found.append(local.wait() if hasattr(local, "wait") else local)
        return found

    def _wrapped(self, o: Operand, local: Tensor) -> Any:
        from torch.distributed.tensor import DTensor

        shape = self.shape
        if o.role is Role.ROW:
            shape = tuple(self.form.row_shape(self.params, self.tensors))
        strides, step = [0] * len(shape), 1
        for d in sorted(range(len(shape)), key=lambda d: (local.stride(d), -d)):
            strides[d], step = step, step * max(shape[d], 1)
        return DTensor.from_local(
            local,
            self.mesh,
            self._placements(o, len(shape)),
            run_check=False,
            shape=torch.Size(shape),
            stride=tuple(strides),
        )

    # What runs.

    def run(self) -> Any:
        cutting = [m for m, at in enumerate(self.where) if at in self.axes]
        local = self._local()
        made = self._run_cut(cutting, local) if cutting else self._run_whole(local)
        return unpacked([self._wrapped(o, t) for o, t in zip(self.form.writes, made, strict=True)])

    def _run_whole(self, local: Sequence[Tensor]) -> Sequence[Tensor]:
        """Every row is whole on its shard."""
        params = self.params
        if "shape" in self.form.names:
            shape = list(self.shape)
            for d in range(len(shape)):
                levels = levels_of(self.mesh, [m for m, at in enumerate(self.where) if at == d])
                shape[d] = length_of(shape[d], levels)
            params = self.form.with_values(params, shape=tuple(shape))
        empty = self.form.empty(params, *local)
        if not any(t.numel() for t in empty):
            return empty
        return as_tuple(self.op(*local, *params))

    def _run_cut(self, mesh_dims: Sequence[int], local: Sequence[Tensor]) -> Sequence[Tensor]:
        levels = levels_of(self.mesh, mesh_dims)
        if self.form.is_segmented:
            return _Segments(self, levels).run(local)
        lead = next((d for d in self.axes if self.shape[d] > 1), self.axes[0])
        leading = [v for v in levels if self.where[v.dim] == lead]
        # What is cut several times is put together from the innermost cut.
        others = [(v, d) for v in reversed(levels) if (d := self.where[v.dim]) not in (lead, None)]
        cut = _Cut(self, [*leading, *(v for v, _ in others)], lead)
        for level, axis in others:
            outer = [m for m in range(level.dim) if self.where[m] == axis]
            length = length_of(self.shape[axis], levels_of(self.mesh, outer))
            local = self._resharded(self.form.reads, local, level, axis, lead, length)
        made: Sequence[Tensor] = cut.run(local)
        for k, (level, axis) in reversed(list(enumerate(others))):
            length = length_of(self.shape[lead], [*leading, *(v for v, _ in others[:k])])
            made = self._resharded(self.form.writes, made, level, lead, axis, length)
        return made

    def _resharded(
        self, operands: Sequence[Operand], tensors: Sequence[Tensor], level: Level, *how: Any
    ) -> list[Tensor]:
        """Those with an element for every position, sharded along another axis by a level."""
        return [
            resharded(t, self.mesh, level, *how) if o.role is Role.ELEMENT else t
            for o, t in zip(operands, tensors, strict=True)
        ]


class _Cut:
    """An op on shards of its axis: every process runs this on its own piece."""

    def __init__(self, call: _Call, levels: Sequence[Level], lead: int):
        from . import pieces

        self.call, self.levels, self.lead, self.ops = call, levels, lead, pieces
        form, tensors = call.form, call.tensors
        self.problem = form.problem(call.params, *tensors)
        self.text = text_of(self.problem)
        cut = cut_of(self.text)
        assert isinstance(cut, Cut)
        self.cut = cut
        self.mine = place_of(levels)
        inner = call.axes[call.axes.index(lead) + 1 :]
        self.step = math.prod(call.shape[d] for d in inner)
        bounds = bounds_of(call.shape[lead], [v.size for v in levels])
        self.bounds = [b * self.step for b in bounds]
        self.grid = list(settled(cut, self.bounds))

    def run(self, local: Sequence[Tensor]) -> list[Tensor]:
        call, cut, ops = self.call, self.cut, self.ops
        given = {o.name: t for o, t in zip(call.form.reads, local, strict=True)}
        operands = [self._to_rows(o, given[o.name]) for o in cut.reads]
        rows = [t for o, t in zip(cut.reads, operands, strict=True) if o.role is Role.ROW]
        start, length = self.grid[self.mine], self.grid[self.mine + 1] - self.grid[self.mine]
        before = self._edges(operands) if cut.neighbours else []
        states: list[Tensor] = []
        summaries: list[Tensor] = []
        behind: list[Tensor] = []
        blocks = [-(-(b - a) // cut.block) for a, b in itertools.pairwise(self.grid)]
        for k in range(len(cut.sweeps)):
            told = (operands, before, states, list(summaries), self.text, k, start, length)
            own = ops.states_of(*told)
            summaries.append(own)
            most = max(blocks)
            missing = most - blocks[self.mine]
            if missing:
                own = torch.nn.functional.pad(own, (0, 0, 0, missing))
            here, total = ops.joined(
                rows, gathered(own, self.call.mesh, self.levels), self.text, k, blocks, self.mine
            )
            states.append(here)
            behind.append(total)
        made: dict[str, Tensor] = {}
        wanted = {o.name: o for o in call.form.writes}
        elements = [o for o in self.problem.writes if o.role is Role.ELEMENT]
        if any(o.name in wanted for o in elements):
            results = ops.applied(operands, before, states, self.text, start, length)
            made |= dict(zip([o.name for o in elements], results, strict=True))
        of_rows = [o for o in self.problem.writes if o.role is Role.ROW]
        if any(o.name in wanted for o in of_rows):
            results = ops.finished(rows, behind, self.text)
            made |= dict(zip([o.name for o in of_rows], results, strict=True))
        return [self._from_rows(o, made[n]) for n, o in wanted.items()]

    # Layout.

    def _to_rows(self, o: Operand, t: Tensor) -> Tensor:
        axes, rank = self.problem.axes, len(self.problem.shape)
        kept = [d for d in range(rank) if d not in axes]
        if o.role is Role.ROW:
            if t.dim() != rank:
                return t
            return t.reshape([t.shape[d] for d in kept])
        t = t.permute(*kept, *axes)
        t = t.reshape(*t.shape[: len(kept)], math.prod(t.shape[len(kept) :]))
        return moved(t, self.call.mesh, self.levels, self.bounds, self.grid)

    def _from_rows(self, o: Operand, t: Tensor) -> Tensor:
        axes, shape = self.problem.axes, self.problem.shape
        rank = len(shape)
        if o.role is Role.ROW:
            wanted = self.call.form.row_shape(self.call.params, self.call.tensors)
            if len(wanted) == rank:
                for a in axes:
                    t = t.unsqueeze(a)
            return t
        t = moved(t, self.call.mesh, self.levels, self.grid, self.bounds)
        mine = (self.bounds[self.mine + 1] - self.bounds[self.mine]) // max(self.step, 1)
        lengths = [mine if a == self.lead else shape[a] for a in axes]
        kept = [d for d in range(rank) if d not in axes]
        t = t.reshape(*t.shape[:-1], *lengths)
        order = [*kept, *axes]
        return t.permute([order.index(d) for d in range(rank)])

    # What travels.

    def _edges(self, operands: Sequence[Tensor]) -> list[Tensor]:
        """The elements in front of this piece, in forward order; nothing for the first."""
        names = [o.name for o in self.cut.reads]
        at = 0 if self.problem.reverse else -1
        columns = []
        for n in self.cut.neighbours:
            t = operands[names.index(n)]
            column = t[..., at] if t.shape[-1] else t.new_zeros(t.shape[:-1])
            columns.append(column.to(torch.float64))
        edges = gathered(torch.stack(columns), self.call.mesh, self.levels)
        count = len(self.grid) - 1
        ahead = (
            range(self.mine + 1, count) if self.problem.reverse else range(self.mine - 1, -1, -1)
        )
        for k in ahead:
            if self.grid[k + 1] > self.grid[k]:
                return list(edges[k].unbind())
        return []


class _Segments:
    """An op on segments whose rows are sharded: states of all segments go from shard to shard."""

    def __init__(self, call: _Call, levels: Sequence[Level]):
        from . import pieces

        self.call, self.levels, self.ops = call, levels, pieces
        self.columns = math.prod(call.shape[1:])
        self.bounds = bounds_of(call.shape[0], [v.size for v in levels])
        form, params, tensors = call.form, call.params, call.tensors
        problem = form.problem(params, *tensors)
        self.problem = replace(problem, shape=(call.shape[0], self.columns))
        self.text = text_of(self.problem)
        cut = cut_of(self.text)
        assert isinstance(cut, SegmentCut)
        self.cut = cut

    def run(self, local: Sequence[Tensor]) -> list[Tensor]:
        call, cut, ops, mine = self.call, self.cut, self.ops, place_of(self.levels)
        given = {o.name: t for o, t in zip(call.form.reads, local, strict=True)}
        operands = []
        for o in cut.reads:
            t = given[o.name]
            is_table = o.role in (Role.ELEMENT, Role.ROW)
            operands.append(t.reshape(t.shape[0], math.prod(t.shape[1:])) if is_table else t)
        start, length = self.bounds[mine], self.bounds[mine + 1] - self.bounds[mine]
        states: list[Tensor] = []
        before: list[Tensor] = []
        for k in range(len(cut.sweeps)):
            carry: list[Tensor] = []
            for piece in range(len(self.bounds) - 1):
                if piece == mine:
                    if k == 0 and cut.keeps_fronts:
                        before = carry or [self._nothing(operands)]
                    own = ops.folded(operands, before, states, carry, self.text, k, start, length)
                else:
                    own = carry[0] if carry else self._nothing(operands, k)
                carry = [sent_from(piece, own, call.mesh, self.levels)]
            states += carry
        made: dict[str, Tensor] = {}
        wanted = {o.name: o for o in call.form.writes}
        elements = [o.name for o in self.problem.writes if o.role is Role.ELEMENT]
        if any(n in wanted for n in elements):
            results = ops.applied(operands, before, states, self.text, start, length)
            made |= dict(zip(elements, results, strict=True))
        rows = [o.name for o in self.problem.writes if o.role is Role.ROW]
        if any(n in wanted for n in rows):
            held = [t for o, t in zip(cut.reads, operands, strict=True) if o.role is Role.ROW]
            made |= dict(zip(rows, ops.finished(held, states, self.text), strict=True))
        tail = self._tail(local)
        return [made[n].reshape(made[n].shape[0], *tail) for n in wanted]

    def _tail(self, local: Sequence[Tensor]) -> tuple[int, ...]:
        """Shape of this process's columns."""
        for o, t in zip(self.call.form.reads, local, strict=True):
            if o.role in (Role.ELEMENT, Role.ROW):
                return tuple(t.shape[1:])
        raise AssertionError("no table among the operands")

    def _nothing(self, operands: Sequence[Tensor], sweep: int = 0) -> Tensor:
        """The states of segments in front of all rows."""
        step = self.cut.sweeps[sweep]
        tables = (Role.ELEMENT, Role.ROW)
        columns = next(
            t.shape[1] for o, t in zip(self.cut.reads, operands, strict=True) if o.role in tables
        )
        identity = torch.tensor(step.identity, dtype=torch.float64)
        return identity.expand(self.problem.num_segments, columns, -1).contiguous()
