"""One direction of an op as torch calls it: tensors in the order of its row, then parameters.

Which operands that may be left out are there, and which outputs are asked for, is part of a form: a
call by it has every tensor and gives every result. Everything is read off the row.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from ..api.arrange import kept
from ..api.functions import make_function
from ..core import parse
from ..core.declare import Op, Operand, Parameter, Role, Type
from ..core.problem import Problem, describe
from ..errors import InvalidProblemError, UnsupportedError
from ..formulas.arrays import evaluate
from ..formulas.record import RowFormula, ScanFormula, asks_of_rows, names_read
from ..memory.view import View, view
from .arrays import ELEMENTS, TORCH

Parameters = tuple[Any, ...]
Batch = tuple[Tensor, int | None]

# What torch calls a parameter that every library has.
NAMES = {"axis": "dim", "keepdims": "keepdim"}
# Types of the outputs that do not have the op's element type.
DTYPES = {Type.BOOL: torch.bool, Type.INDEX: torch.int64, Type.STATE: torch.float64}
_MOST_SPREADS = 512
# Parameters of a backward that repeat what the forward's operands told.
_TOLD = ("shape", "num_inputs")


def one_dim(dim: Any, rank: int) -> int:
    """`dim` counted from the front; what torch raises for one out of range."""
    extent = rank or 1
    if not -extent <= dim < extent:
        raise IndexError(
            f"Dimension out of range (expected to be in range of [{-extent}, {extent - 1}], "
            f"but got {dim})"
        )
    return int(dim) + extent if dim < 0 else int(dim)


def some_dims(dim: Any, rank: int) -> tuple[int, ...]:
    """An int, a sequence or None (all) as ascending dims."""
    if dim is None:
        return tuple(range(rank))
    dims = sorted([one_dim(k, rank) for k in (dim if isinstance(dim, Sequence) else (dim,))])
    for k in set(dims):
        if dims.count(k) > 1:
            raise RuntimeError(f"dim {k} appears multiple times in the list of dims")
    return tuple(dims) if rank else ()


def unpacked(results: Sequence[Any]) -> Any:
    """One result by itself, several as a tuple."""
    return results[0] if len(results) == 1 else tuple(results)


def as_tuple(result: Any) -> tuple[Any, ...]:
    """The other way."""
    return result if isinstance(result, tuple) else (result,)


@dataclass
class BatchedCall:
    """One call that stands for a call on every example of a batch.

    ``finish(operand, result)`` gives the results of all examples, with the batch as dimension
    ``dim``; ``by_ids`` says that the call is one of the form whose ids cut what offsets did.
    """

    tensors: list[Tensor]
    parameters: Parameters
    dim: int = 0
    finish: Callable[[Operand, Tensor], Tensor] = lambda _, t: t
    by_ids: bool = False


def _front(t: Tensor, batch_dim: int | None, size: int, place: int = 0) -> Tensor:
    """The batch as a leading dimension; a tensor without one is repeated without a copy."""
    if batch_dim is not None:
        return t.movedim(batch_dim, place)
    return t.unsqueeze(place).expand(*t.shape[:place], size, *t.shape[place:])


class Form:
    """One direction of an op with a set of operands.

    Parameters
    ----------
    op
        The op.
    given
        Names of its operands that may be left out and are there.
    flags
        Parameters that ask for outputs, with their values.
    parameters
        Those that a call passes: of both directions, so that one tuple serves both.

    Attributes
    ----------
    reads, writes
        The operands and outputs that are there, in order.
    names
        Names of the parameters of a call, in order. Those of a backward end with the shape of the
        forward's operands where nothing else tells it.
    lead
        Index of the operand that has the op's element type for certain.
    like
        Index of the operand that results with an element for every position are laid out like.
    scans
        Whether it goes along a dimension step by step.
    reads_names
        Names that its formulas ask for.
    spreads
        Whether the one result is the one operand at every position of its row.
    """

    def __init__(
        self,
        op: Op,
        given: frozenset[str],
        flags: Mapping[str, bool],
        parameters: tuple[Parameter, ...],
    ) -> None:
        self.op, self.given, self.flags = op, given, dict(flags)
        told = () if op.direction == "forward" else op.parameters
        self.parameters = (*parameters, *(p for p in told if p.name in _TOLD))
        self.names = tuple(p.name for p in self.parameters)
        known = {*self.names, *flags}
        self._own = tuple(p.name for p in op.parameters if p.name in known)
        self.reads = tuple(o for o in op.reads if not o.optional or o.name in given)
        asked = {**flags, **{n: n in given for n in op.optional}}
        self.writes = tuple(o for o in op.writes if asked.get(o.asked_by, True))
        roles = [o.role for o in self.reads]
        typed = [k for k, o in enumerate(self.reads) if o.type is Type.ELEMENT]
        tables = [k for k in typed if roles[k] is Role.ELEMENT]
        self.lead, self.like = typed[0], tables[-1] if tables else None
        self.typed = tuple(typed)
        self._shaped = roles.index(Role.ELEMENT) if Role.ELEMENT in roles else None
        self._row = roles.index(Role.ROW) if Role.ROW in roles else None
        cuts = [k for k, role in enumerate(roles) if role in (Role.IDS, Role.OFFSETS)]
        self.cut = cuts[0] if cuts else None
        self._spreads: dict[tuple[Parameters, int], tuple[tuple[int, ...], tuple[int, ...]]] = {}
        records = [op.record(s) for s in self.selections()]
        self.scans = any(isinstance(r, ScanFormula) for r in records)
        self.reads_names = frozenset().union(*map(names_read, records))
        self._asks_of_rows = any(map(asks_of_rows, records))
        # dx is dy at every position: a view says so without writing anything.
        self.spreads = (
            self.cut is None
            and [o.role for o in self.reads] == [Role.ROW]
            and [o.role for o in self.writes] == [Role.ELEMENT]
            and all(isinstance(r, RowFormula) and r.copies for r in records)
        )

    @property
    def has_checks(self) -> bool:
        """Whether operands hold integers whose values are looked at before a run."""
        return any(o.type is Type.INDEX for o in self.reads)

    @property
    def counts_segments(self) -> bool:
        """Whether there may be as many segments as the ids name."""
        has_rows = any(o.role is Role.ROW for o in self.writes)
        return "num_segments" in self.names and not self.by_offsets and not has_rows

    @property
    def is_segmented(self) -> bool:
        """Whether ids or offsets cut rows into segments."""
        return self.cut is not None

    @property
    def by_offsets(self) -> bool:
        return self.cut is not None and self.reads[self.cut].role is Role.OFFSETS

    @property
    def may_drop(self) -> bool:
        """Whether ids that are wrong may be left out, and then are not looked for."""
        return self.is_segmented and not self.by_offsets and "out_of_range" in self.names

    def waits(self, params: Parameters) -> bool:
        """Whether a call on a GPU waits to know if ids or offsets are wrong."""
        values = self.values(params)
        if not self.may_drop or values["out_of_range"] != "drop":
            return self.is_segmented
        return bool("sorted" in self._own and values["sorted"] and self._asks_of_rows)

    def selections(self) -> Iterator[tuple[Any, ...]]:
        """Every selection of the op's records that calls of this form may make."""
        known = {**self.flags, **{n: n in self.given for n in self.op.optional}}
        choices = [(known[n],) if n in known else c for n, c in self.op.selectors.items()]
        return itertools.product(*choices)

    # Parameters.

    def values(self, params: Parameters) -> dict[str, Any]:
        """Parameters by name."""
        return {**dict(zip(self.names, params, strict=True)), **self.flags}

    def with_values(self, params: Parameters, **others: Any) -> Parameters:
        """Parameters with other values of some that there are."""
        return tuple(others.get(n, v) for n, v in zip(self.names, params, strict=True))

    def canonical(self, params: Parameters, tensors: Sequence[Tensor]) -> Parameters:
        """Parameters with dims counted from the front, and the number of segments."""
        found: dict[str, Any] = {}
        for p, value in zip(self.parameters, params, strict=True):
            if p.parse is parse.axis:
                found[p.name] = one_dim(value, tensors[self.lead].dim())
            elif p.parse is parse.axes:
                found[p.name] = some_dims(value, tensors[self.lead].dim())
            elif p.name == "num_segments":
                if self.by_offsets:
                    found[p.name] = tensors[self.cut].shape[0] - 1  # type: ignore[index]
                elif value is None:
                    found[p.name] = self._most_segments(tensors[self.cut])  # type: ignore[index]
        return self.with_values(params, **found) if found else params

    def _most_segments(self, ids: Tensor) -> int:
        """As many segments as the ids name, where no result has a row for each."""
        if any(o.role is Role.ROW for o in self.writes):
            raise TypeError(f"{self.op.name}(): missing required argument 'num_segments'")
        return int(ids.max()) + 1 if ids.numel() else 0

    def told(self, shape: Sequence[int]) -> Parameters:
        """What a backward is told of the shape of the forward's operands."""
        known = {"shape": tuple(shape), "num_inputs": shape[0] if shape else 0}
        return tuple(known[n] for n in self.names if n in _TOLD)

    # Shapes.

    def shape(self, params: Parameters, tensors: Sequence[Tensor]) -> tuple[int, ...]:
        """Shape of the operands with an element for every position."""
        if self._shaped is not None:
            return tuple(tensors[self._shaped].shape)
        values = self.values(params)
        if "shape" in values:
            return tuple(values["shape"])
        assert self.cut is not None
        assert self._row is not None
        rows = values["num_inputs"] if self.by_offsets else tensors[self.cut].shape[0]
        return (rows, *tensors[self._row].shape[1:])

    def segments(self, params: Parameters, tensors: Sequence[Tensor]) -> Any:
        """Number of segments; None where rows are not cut."""
        if self.cut is None:
            return None
        if self.by_offsets:
            return tensors[self.cut].shape[0] - 1
        if self._row is not None:
            return tensors[self._row].shape[0]
        return self.values(params)["num_segments"]

    def axes(self, params: Parameters, rank: int) -> tuple[int, ...]:
        """The op's axes, of canonical parameters."""
        if self.is_segmented:
            return (0,)
        axis = self.values(params).get("axis", range(rank))
        if isinstance(axis, int):
            return (axis,) if rank else ()
        return tuple(axis)

    def extent(self, params: Parameters, tensors: Sequence[Tensor]) -> int:
        """Elements along the axes."""
        shape, count = self.shape(params, tensors), 1
        for k in self.axes(params, len(shape)):
            count *= shape[k]
        return count

    def row_shape(self, params: Parameters, tensors: Sequence[Tensor]) -> list[int]:
        """Shape of results with one element for every row."""
        shape = self.shape(params, tensors)
        if self.is_segmented:
            return [self.segments(params, tensors), *shape[1:]]
        axes = self.axes(params, len(shape))
        if self._keeps(params, tensors, len(shape)):
            return [1 if k in axes else n for k, n in enumerate(shape)]
        return [n for k, n in enumerate(shape) if k not in axes]

    def _keeps(self, params: Parameters, tensors: Sequence[Tensor], rank: int) -> bool:
        """As the caller says or, where there is nothing to say it by, as the operands do."""
        if self.op.parameter("keepdims") is not None:
            return bool(self.values(params)["keepdims"])
        rows = (t for o, t in zip(self.reads, tensors, strict=True) if o.role is Role.ROW)
        return any(t.dim() == rank for t in rows)

    def empty(self, params: Parameters, *tensors: Tensor) -> tuple[Tensor, ...]:
        """New tensors for the results."""
        lead, made = tensors[self.lead], []
        for o in self.writes:
            dtype = DTYPES.get(o.type, lead.dtype)
            if o.role is Role.ROW:
                made.append(lead.new_empty(self.row_shape(params, tensors), dtype=dtype))
            elif self.like is None:
                made.append(lead.new_empty(self.shape(params, tensors), dtype=dtype))
            else:
                made.append(torch.empty_like(tensors[self.like], dtype=dtype))
        return tuple(made)

    def stretched(self, params: Parameters, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Operands with an element for every position in one shape, as views."""
        pairs = list(zip(self.reads, tensors, strict=True))
        full = [t.shape for o, t in pairs if o.role is Role.ELEMENT and not o.broadcasts]
        shape = torch.broadcast_shapes(*full)
        found = []
        for o, t in pairs:
            if o.role is Role.ELEMENT and t.shape != shape:
                missing = len(shape) - t.dim()
                own = [1] * missing + list(t.shape)
                if missing < 0 or any(n != 1 and n != m for n, m in zip(own, shape, strict=False)):
                    raise InvalidProblemError(
                        f"{o.name}: expected a shape that broadcasts to {tuple(shape)}, got "
                        f"{tuple(t.shape)}"
                    )
                if o.type is Type.BOOL and self.scans:
                    axis = self.values(params)["axis"]
                    if own[axis] != shape[axis]:
                        raise InvalidProblemError(
                            f"{o.name}: expected {shape[axis]} elements along the dimension of the "
                            f"scan, got 1"
                        )
                t = t.expand(shape)
            found.append(t)
        return found

    # Calls.

    def problem(self, params: Parameters, *tensors: Tensor) -> Problem:
        """What a kernel runs, or a formula gives."""
        element = ELEMENTS.get(tensors[self.lead].dtype, "f64")
        shape, segments = self.shape(params, tensors), self.segments(params, tensors)
        values = self.values(params)
        return describe(self.op, element, shape, values, self.given, segments, NAMES)

    def views(self, problem: Problem, *tensors: Tensor) -> dict[str, View]:
        """Where operands lie: those that are read, then those that are written."""
        found = {}
        for o, t in zip((*self.reads, *self.writes), tensors, strict=True):
            v = view(t, o.name)
            is_row = o.role is Role.ROW
            found[o.name] = kept(v, problem.axes, len(problem.shape)) if is_row else v
        return found

    @cached_property
    def _function(self) -> Callable[..., Any]:
        return make_function(self.op)

    def by_function(self, params: Parameters, *tensors: Tensor, out: Any = None) -> Any:
        """The call through the functions of ``pullback``, which know every device.

        Results are written to ``out``, if it is given.
        """
        words = dict(zip((o.name for o in self.reads), tensors, strict=True))
        values = self.values(params)
        words |= {n: values[n] for n in self._own}
        results = unpacked(self.empty(params, *tensors)) if out is None else out
        self._function(**words, out=results)
        return results

    def evaluated(self, params: Parameters, *tensors: Tensor) -> Any:
        """The call in torch ops, by the catalog's formula."""
        for k in self.typed:
            name, dtype = self.reads[k].name, tensors[k].dtype
            if not dtype.is_floating_point:
                raise UnsupportedError(
                    f"{name}: expected a float tensor for {self.op.name}, got {dtype}"
                )
            if dtype != tensors[self.lead].dtype:
                raise InvalidProblemError(
                    f"{name}: expected {tensors[self.lead].dtype}, got {dtype}"
                )
        problem = self.problem(params, *tensors)
        rank = len(problem.shape)
        given = {}
        for o, t in zip(self.reads, tensors, strict=True):
            if o.role is Role.ROW and t.dim() != rank:
                for k in problem.axes:
                    t = t.unsqueeze(k)
            given[o.name] = t
        made = {
            o.name: t for o, t in zip(problem.writes, evaluate(problem, given, TORCH), strict=True)
        }
        row = self.row_shape(params, tensors)
        return unpacked(
            [made[o.name].reshape(row) if o.role is Role.ROW else made[o.name] for o in self.writes]
        )

    def spread(self, params: Parameters, dy: Tensor) -> Tensor:
        """``dy`` at every position of its row, as a view."""
        key = (params, dy.dim())
        known = self._spreads.get(key)
        if known is None:
            shape = self.shape(params, (dy,))
            missing = self.axes(params, len(shape)) if dy.dim() != len(shape) else ()
            if len(self._spreads) >= _MOST_SPREADS:
                self._spreads.clear()
            known = self._spreads[key] = (missing, shape)
        missing, shape = known
        for k in missing:
            dy = dy.unsqueeze(k)
        return dy.expand(shape)

    # Batches.

    def batched(self, params: Parameters, size: int, batches: Sequence[Batch]) -> BatchedCall:
        """A call on every example of a batch as one call."""
        if self.cut is not None:
            return self._batched_segments(params, size, batches)
        rank = len(self.shape(params, [t for t, _ in batches]))
        has_batch = [k is not None for _, k in batches]
        if self._shaped is not None and has_batch[self._shaped]:
            rank -= 1
        tensors = [_front(t, k, size) for t, k in batches]
        values = self.values(params)
        moved: dict[str, Any] = {}
        if "shape" in values:
            moved["shape"] = (size, *values["shape"])
        axis = values.get("axis", ())
        moved["axis"] = axis + 1 if isinstance(axis, int) else tuple(k + 1 for k in axis)
        params = self.with_values(params, **moved)
        if rank or not isinstance(axis, int):
            return BatchedCall(tensors, params)
        # An example of rank 0 has no dimension to go along.
        is_full = [o.role is Role.ELEMENT for o in self.reads]
        tensors = [t[..., None] if full else t for t, full in zip(tensors, is_full, strict=True)]

        def finish(operand: Operand, t: Tensor) -> Tensor:
            return t[..., 0] if operand.role is Role.ELEMENT else t

        return BatchedCall(tensors, params, finish=finish)

    def _batched_segments(
        self, params: Parameters, size: int, batches: Sequence[Batch]
    ) -> BatchedCall:
        assert self.cut is not None
        if batches[self.cut][1] is None:  # a dimension more of what is cut
            tensors = [
                t if at == self.cut else _front(t, k, size, 1) for at, (t, k) in enumerate(batches)
            ]
            return BatchedCall(tensors, params, dim=1)
        # Every example gets segments of its own, one after another.
        tensors = [_front(t, k, size) for t, k in batches]
        ids = tensors[self.cut]
        one = [t[0] for t in tensors]
        rows, segments = self.shape(params, one)[0], self.segments(params, one)
        if self.by_offsets:
            places = torch.arange(rows, dtype=ids.dtype, device=ids.device)
            ids = torch.searchsorted(ids.contiguous(), places.repeat(size, 1), right=True) - 1
        inside = (ids >= 0) & (ids < segments)
        own = ids + segments * torch.arange(size, dtype=ids.dtype, device=ids.device)[:, None]
        tensors = [t.flatten(0, 1) for t in tensors]
        tensors[self.cut] = torch.where(inside, own, -1).flatten()
        others = {"num_segments": segments * size, "num_inputs": rows * size, "sorted": False}
        if self.by_offsets:
            others["out_of_range"] = "drop"

        def finish(operand: Operand, t: Tensor) -> Tensor:
            count = segments if operand.role is Role.ROW else rows
            return t.unflatten(0, (size, count))

        params = self.with_values(params, **others)
        return BatchedCall(tensors, params, finish=finish, by_ids=self.by_offsets)

    # The op in torch's library.

    def schema(self, name: str) -> str:
        """Signature of the op in torch's library, where it is called ``name``."""
        arguments = [f"Tensor {o.name}" for o in self.reads]
        arguments += [f"{p.kind.schema} {NAMES.get(p.name, p.name)}" for p in self.parameters]
        returns = ", ".join(["Tensor"] * len(self.writes))
        returns = returns if len(self.writes) == 1 else f"({returns})"
        return f"{name}({', '.join(arguments)}) -> {returns}"
