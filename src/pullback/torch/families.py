"""The families as torch sees them: parameters, shapes of results, plans, batches.

A kind is called with tensors (in the order of its catalog row) and a tuple of parameters. A
backward is called with the gradient, the tensors it needs from the forward, and the forward's
parameters; where no tensor tells the shape of the result, the shape is one parameter more.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..api.functions import FUNCTIONS, kept
from ..core import elements
from ..core.catalog import find
from ..core.declare import Op
from ..core.problem import Problem, describe
from ..errors import UnsupportedError
from ..formulas.arrays import evaluate
from ..formulas.record import names_read
from ..memory.view import View, view
from .arrays import TORCH

Parameters = tuple[Any, ...]
Batch = tuple[Tensor, int | None]

ELEMENTS = {getattr(torch, e.dtype.name): e.name for e in elements.ELEMENTS.values() if e.is_float}


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


def names_of(op: Op) -> set[str]:
    """Names that the formulas of an op ask for."""
    return set().union(*(names_read(op.record(s)) for s in op.selections()))


@dataclass
class BatchedCall:
    """One call that stands for a call on every example of a batch."""

    tensors: list[Tensor]
    parameters: Parameters
    dim: int = 0  # of the finished results that holds the batch
    finish: Callable[[Tensor], Tensor] = lambda t: t


def _front(t: Tensor, batch_dim: int | None, size: int) -> Tensor:
    """The batch as the first dimension; a tensor without one is repeated without a copy."""
    return t.expand(size, *t.shape) if batch_dim is None else t.movedim(batch_dim, 0)


class Family:
    """One kind of the catalog.

    Attributes
    ----------
    tensors
        Operands of the forward, in order.
    saves
        Operands of the backward beyond the gradient, in order.
    parameters
        Names and schema types of the parameters.
    linear
        The backward reads neither input nor output. Then the forward is a linear map, and is
        its own derivative.
    """

    tensors: tuple[str, ...] = ("x",)
    parameters: dict[str, str]

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.forward = find(kind, "forward")
        self.backward = find(kind, "backward")
        self.ties = self.backward.ties
        self.saves: tuple[str, ...] = tuple(n for n in ("x", "y") if n in self.backward.needs)
        self.linear = not self.backward.needs
        self.outputs = len(self.backward.outputs)

    def canonical(self, params: Parameters, x: Tensor) -> Parameters:
        """Parameters with dims counted from the front."""
        return params

    def backward_parameters(self, params: Parameters, x: Tensor) -> Parameters:
        """Parameters of the backward."""
        return params

    def is_degenerate(self, op: Op, params: Parameters, *tensors: Tensor) -> bool:
        """Whether torch means something else here than the kernel computes."""
        return False

    def schema(self, op: Op, name: str) -> str:
        """Signature of the op in torch's library, where it is called ``name``."""
        if op.direction == "forward":
            tensors, results = self.tensors, 1
        else:
            tensors, results = ("grad", *self.saves), self.outputs
        arguments = [f"Tensor {n}" for n in tensors]
        arguments += [f"{kind} {n}" for n, kind in self.parameters_of(op).items()]
        returns = "Tensor" if results == 1 else f"({', '.join(['Tensor'] * results)})"
        return f"{name}({', '.join(arguments)}) -> {returns}"

    def parameters_of(self, op: Op) -> dict[str, str]:
        """Parameters of one direction."""
        return self.parameters

    def empty(self, op: Op, params: Parameters, *tensors: Tensor) -> tuple[Tensor, ...]:
        """New tensors for the results."""
        return (torch.empty_like(tensors[-1]),)

    def problem(self, op: Op, params: Parameters, *tensors: Tensor) -> Problem:
        """What a kernel runs for a call."""
        shape = tuple(tensors[0].shape)
        return describe(op, ELEMENTS[tensors[0].dtype], shape, self.keywords(op, params))

    def views(self, op: Op, params: Parameters, *tensors: Tensor) -> dict[str, View]:
        """Where operands lie: those that are read, then those that are written."""
        names = (*self.operands(op), *op.outputs)
        return {n: view(t, n) for n, t in zip(names, tensors, strict=True)}

    def operands(self, op: Op) -> tuple[str, ...]:
        """Names of the operands that are read, in the order of a call."""
        return self.tensors if op.direction == "forward" else ("dy", *self.saves)

    def by_function(self, op: Op, params: Parameters, *tensors: Tensor) -> Any:
        """The call through the functions of ``pullback``, which know every device."""
        given = dict(zip(self.operands(op), tensors, strict=True))
        lead = given.pop(next(iter(given)))
        return FUNCTIONS[op.name](lead, **given, **self.keywords(op, params))

    def keywords(self, op: Op, params: Parameters) -> dict[str, Any]:
        """Parameters as the functions of ``pullback`` name them."""
        raise NotImplementedError

    def evaluated(self, op: Op, params: Parameters, *tensors: Tensor) -> Any:
        """The call in torch ops, by the catalog's formula."""
        raise UnsupportedError(
            f"{op.name}: torch has no function of its own for it, which this transform, tensor "
            f"type or dtype calls for"
        )

    def by_formula(
        self,
        op: Op,
        shape: tuple[int, ...],
        dims: tuple[int, ...],
        *tensors: Tensor,
        **rest: Any,
    ) -> tuple[Tensor, ...]:
        """The results of an op along ``dims``, by its formula on tensors of those shapes."""
        element = ELEMENTS.get(tensors[0].dtype, "f64")
        problem = Problem(op, element, shape, dims, **rest)
        return evaluate(problem, dict(zip(self.operands(op), tensors, strict=True)), TORCH)

    def batched(self, op: Op, params: Parameters, size: int, batches: list[Batch]) -> BatchedCall:
        """A call on every example of a batch as one call."""
        tensors = [_front(t, k, size) for t, k in batches]
        params = self.shifted(op, params, size)
        if tensors[-1].dim() > 1:
            return BatchedCall(tensors, params)
        return BatchedCall([t[..., None] for t in tensors], params, finish=lambda t: t[..., 0])

    def shifted(self, op: Op, params: Parameters, size: int) -> Parameters:
        """Parameters when one more dimension stands in front."""
        return params


class Scan(Family):
    """Scans along one dim: (dim, reverse[, ties])."""

    def __init__(self, kind: str) -> None:
        super().__init__(kind)
        self.parameters = {"dim": "int", "reverse": "bool"}
        if self.ties:
            self.parameters["ties"] = "str"

    def canonical(self, params: Parameters, x: Tensor) -> Parameters:
        return (one_dim(params[0], x.dim()), *params[1:])

    def keywords(self, op: Op, params: Parameters) -> dict[str, Any]:
        words = {"axis": params[0], "reverse": params[1]}
        if self.ties and op.direction == "backward":
            words["ties"] = params[2]
        return words

    def evaluated(self, op: Op, params: Parameters, *tensors: Tensor) -> Any:
        selection = params[2:] if op.ties else ()
        shape = tuple(tensors[0].shape)
        dims = params[:1] if shape else ()
        return self.by_formula(op, shape, dims, *tensors, selection=selection, reverse=params[1])[0]

    def shifted(self, op: Op, params: Parameters, size: int) -> Parameters:
        return (params[0] + 1, *params[1:])


class Softmax(Family):
    """softmax and log_softmax: (dim,)."""

    def __init__(self, kind: str) -> None:
        super().__init__(kind)
        self.parameters = {"dim": "int"}

    def canonical(self, params: Parameters, x: Tensor) -> Parameters:
        return (one_dim(params[0], x.dim()),)

    def keywords(self, op: Op, params: Parameters) -> dict[str, Any]:
        return {"axis": params[0]}

    def evaluated(self, op: Op, params: Parameters, *tensors: Tensor) -> Any:
        shape = tuple(tensors[0].shape)
        return self.by_formula(op, shape, params if shape else (), *tensors)[0]

    def shifted(self, op: Op, params: Parameters, size: int) -> Parameters:
        return (params[0] + 1,)


class Reduction(Family):
    """Reductions: (dim, keepdim[, correction][, ties]) and, backward without x, the shape."""

    def __init__(self, kind: str) -> None:
        super().__init__(kind)
        self.corrected = "correction" in names_of(self.forward)
        self.parameters = {"dim": "int[]", "keepdim": "bool"}
        if self.corrected:
            self.parameters["correction"] = "float"
        if self.ties:
            self.parameters["ties"] = "str"
        # dx is dy at every position: a view says so without writing anything.
        self.spreads = names_of(self.backward) <= {"dy"}

    def canonical(self, params: Parameters, x: Tensor) -> Parameters:
        return (some_dims(params[0], x.dim()), *params[1:])

    def backward_parameters(self, params: Parameters, x: Tensor) -> Parameters:
        return params if "x" in self.saves else (*params, tuple(x.shape))

    def is_degenerate(self, op: Op, params: Parameters, *tensors: Tensor) -> bool:
        # torch divides by n - correction whatever it is, the kernel by 1 at least.
        if not self.corrected:
            return False
        shape = tensors[0 if op.direction == "forward" else 1].shape
        return bool(math.prod([shape[k] for k in params[0]]) - params[2] < 1)

    def parameters_of(self, op: Op) -> dict[str, str]:
        if op.direction == "forward" or "x" in self.saves:
            return self.parameters
        return {**self.parameters, "shape": "SymInt[]"}

    def empty(self, op: Op, params: Parameters, *tensors: Tensor) -> tuple[Tensor, ...]:
        if op.direction == "forward":
            (x,) = tensors
            return (x.new_empty(self.reduced_shape(x.shape, params[0], params[1])),)
        if "x" in self.saves:
            return (torch.empty_like(tensors[1]),)
        return (tensors[0].new_empty(params[-1]),)

    @staticmethod
    def reduced_shape(shape: Sequence[int], dims: tuple[int, ...], keepdim: bool) -> list[int]:
        """Shape of the result."""
        if keepdim:
            return [1 if k in dims else n for k, n in enumerate(shape)]
        return [n for k, n in enumerate(shape) if k not in dims]

    def _input_shape(self, params: Parameters, tensors: Sequence[Tensor]) -> tuple[int, ...]:
        return tuple(tensors[1].shape) if "x" in self.saves else tuple(params[-1])

    def problem(self, op: Op, params: Parameters, *tensors: Tensor) -> Problem:
        shape = tuple(tensors[0].shape)
        if op.direction == "backward":
            shape = self._input_shape(params, tensors)
        return describe(op, ELEMENTS[tensors[0].dtype], shape, self.keywords(op, params))

    def views(self, op: Op, params: Parameters, *tensors: Tensor) -> dict[str, View]:
        views = super().views(op, params, *tensors)
        rank = len(views["x" if op.direction == "forward" else "dx"].shape)
        for name in ("dy", "y"):
            if name in views:
                views[name] = kept(views[name], params[0], rank)
        return views

    def keywords(self, op: Op, params: Parameters) -> dict[str, Any]:
        words: dict[str, Any] = {"axis": params[0]}
        if self.corrected:
            words["correction"] = params[2]
        if op.direction == "forward":
            words["keepdims"] = params[1]
        elif self.ties:
            words["ties"] = params[2]
        if op.direction == "backward" and "x" not in self.saves:
            words["shape"] = tuple(params[-1])
        return words

    def batched(self, op: Op, params: Parameters, size: int, batches: list[Batch]) -> BatchedCall:
        tensors = [_front(t, k, size) for t, k in batches]
        return BatchedCall(tensors, self.shifted(op, params, size))

    def shifted(self, op: Op, params: Parameters, size: int) -> Parameters:
        dims = tuple(k + 1 for k in params[0])
        if op.direction == "backward" and "x" not in self.saves:
            return (dims, *params[1:-1], (size, *params[-1]))
        return (dims, *params[1:])

    def evaluated(self, op: Op, params: Parameters, *tensors: Tensor) -> Any:
        dims = params[0]
        forward = op.direction == "forward"
        shape = tuple(tensors[0].shape) if forward else self._input_shape(params, tensors)
        tensors = tuple(self._unsqueezed(t, dims, len(shape)) for t in tensors)
        data = (("correction", float(params[2])),) if self.corrected else ()
        selection = params[2:3] if op.ties else ()
        (result,) = self.by_formula(op, shape, dims, *tensors, selection=selection, data=data)
        if forward and not params[1]:
            return result.reshape(self.reduced_shape(shape, dims, False))
        return result

    @staticmethod
    def _unsqueezed(t: Tensor, dims: tuple[int, ...], rank: int) -> Tensor:
        if t.dim() != rank:
            for k in dims:
                t = t.unsqueeze(k)
        return t

    def spread(self, params: Parameters, dy: Tensor) -> Tensor:
        """dy at every position, as a view."""
        return self._unsqueezed(dy, params[0], len(params[-1])).expand(params[-1])


class Lerp(Family):
    """lerp of tensors of one shape: (weight,)."""

    tensors = ("a", "b")

    def __init__(self, kind: str) -> None:
        super().__init__(kind)
        self.parameters = {"weight": "float"}

    def empty(self, op: Op, params: Parameters, *tensors: Tensor) -> tuple[Tensor, ...]:
        return tuple(torch.empty_like(tensors[0]) for _ in op.outputs)

    def keywords(self, op: Op, params: Parameters) -> dict[str, Any]:
        return {"weight": params[0]}

    def by_function(self, op: Op, params: Parameters, *tensors: Tensor) -> Any:
        return FUNCTIONS[op.name](*tensors, **self.keywords(op, params))

    def evaluated(self, op: Op, params: Parameters, *tensors: Tensor) -> Any:
        shape = tuple(tensors[0].shape)
        dims = tuple(range(len(shape)))
        results = self.by_formula(op, shape, dims, *tensors, data=(("weight", params[0]),))
        return results[0] if len(results) == 1 else results

    def batched(self, op: Op, params: Parameters, size: int, batches: list[Batch]) -> BatchedCall:
        return BatchedCall([_front(t, k, size) for t, k in batches], params)


class Segment(Family):
    """Rows summed by id: (num_segments, sorted, out_of_range)."""

    tensors = ("input", "segment_ids")

    def __init__(self, kind: str) -> None:
        super().__init__(kind)
        self.parameters = {"num_segments": "SymInt", "sorted": "bool", "out_of_range": "str"}
        self.saves = ("segment_ids",)

    def operands(self, op: Op) -> tuple[str, ...]:
        return op.inputs

    def empty(self, op: Op, params: Parameters, *tensors: Tensor) -> tuple[Tensor, ...]:
        values, ids = tensors
        rows = params[0] if op.direction == "forward" else ids.shape[0]
        return (values.new_empty((rows, *values.shape[1:])),)

    def by_function(self, op: Op, params: Parameters, *tensors: Tensor) -> Any:
        values, ids = tensors
        (result,) = self.empty(op, params, values, ids)
        # The function takes rows that merge into one dimension.
        rows = values.reshape(values.shape[0], math.prod(values.shape[1:]))
        out = result.view(result.shape[0], rows.shape[1])
        function = FUNCTIONS[op.name]
        if op.direction == "forward":
            num_segments, is_sorted, policy = params
            function(rows, ids, num_segments, sorted=is_sorted, out_of_range=policy, out=out)
        else:
            function(rows, ids, out_of_range=params[2], out=out)
        return result

    def batched(self, op: Op, params: Parameters, size: int, batches: list[Batch]) -> BatchedCall:
        (values, k), (ids, ids_dim) = batches
        if ids_dim is None:
            assert k is not None
            return BatchedCall([values.movedim(k, 1), ids], params, dim=1)
        # Every example gets segments of its own, one after another.
        values, ids = _front(values, k, size), ids.movedim(ids_dim, 0)
        segments = params[0] if op.direction == "forward" else values.shape[1]
        inside = (ids >= 0) & (ids < segments)
        own = ids + segments * torch.arange(size, dtype=ids.dtype, device=ids.device)[:, None]
        rows = segments if op.direction == "forward" else ids.shape[1]
        return BatchedCall(
            [values.flatten(0, 1), torch.where(inside, own, -1).flatten()],
            (segments * size, False, params[2]),
            finish=lambda t: t.unflatten(0, (size, rows)),
        )


FAMILIES: dict[str, type[Family]] = {
    "scan": Scan,
    "reduce": Reduction,
    "softmax": Softmax,
    "lerp": Lerp,
    "segment": Segment,
}
