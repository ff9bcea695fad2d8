"""Cells of the suite: an op of the catalog with its parameters, and operands laid out in memory.

Every tensor lives in a larger buffer whose bytes are all 0xFF, which is NaN in each of the four
element types. After a call the bytes around an output, and between its strided elements, must
still be 0xFF, and none of its own elements may be.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import ml_dtypes
import numpy as np

import pullback as pb
from pullback.oracle import Reference, reference

DTYPES = {
    "f32": np.dtype(np.float32),
    "f64": np.dtype(np.float64),
    "f16": np.dtype(np.float16),
    "bf16": np.dtype(ml_dtypes.bfloat16),
}
ELEMENTS = tuple(DTYPES)
OPS = {op.name: op for op in pb.catalog()}

PLANS = {
    ("scan", "forward"): (pb.ScanDescriptor, pb.ScanPlan),
    ("scan", "backward"): (pb.ScanBackwardDescriptor, pb.ScanBackwardPlan),
    ("reduce", "forward"): (pb.ReduceDescriptor, pb.ReducePlan),
    ("reduce", "backward"): (pb.ReduceBackwardDescriptor, pb.ReduceBackwardPlan),
    ("softmax", "forward"): (pb.SoftmaxDescriptor, pb.SoftmaxPlan),
    ("softmax", "backward"): (pb.SoftmaxBackwardDescriptor, pb.SoftmaxBackwardPlan),
    ("lerp", "forward"): (pb.BinaryParamDescriptor, pb.BinaryParamPlan),
    ("lerp", "backward"): (pb.BinaryParamBackwardDescriptor, pb.BinaryParamBackwardPlan),
}
SEGMENT_PLANS = {
    ("forward", True): (pb.SegmentSumDescriptor, pb.SegmentSumPlan),
    ("backward", True): (pb.SegmentSumBackwardDescriptor, pb.SegmentSumBackwardPlan),
    ("forward", False): (pb.UnsortedSegmentSumDescriptor, pb.UnsortedSegmentSumPlan),
    ("backward", False): (
        pb.UnsortedSegmentSumBackwardDescriptor,
        pb.UnsortedSegmentSumBackwardPlan,
    ),
}

# (op, element, direction, layout, edge) of everything that was checked; see conftest.
COVERED: set[tuple[str, str, str, str, str]] = set()

POISON = 0xFF
# Elements in front of and behind a tensor: more than a vector, and odd, so that an address is
# aligned to the element and to nothing more.
GUARD = 67


@dataclass(frozen=True)
class Cell:
    """One problem of one op. ``shape`` is that of the full operands; rows for segment ops."""

    op: pb.Op
    element: str
    shape: tuple[int, ...]
    axis: Any = -1
    reverse: bool = False
    ties: str | None = None
    correction: float = 1
    weight: float = 0.3
    num_segments: int = 0
    is_sorted: bool = False
    out_of_range: str = "raise"

    def __str__(self) -> str:
        parts = [self.op.name, self.element, f"shape={self.shape}"]
        shown = ("axis", "reverse", "ties", "correction", "weight", "num_segments", "is_sorted")
        parts += [f"{n}={getattr(self, n)}" for n in (*shown, "out_of_range")]
        return " ".join(parts)

    @property
    def dtype(self) -> np.dtype:
        return DTYPES[self.element]

    @property
    def axes(self) -> tuple[int, ...]:
        rank = len(self.shape)
        if self.op.family == "lerp":
            return tuple(range(rank))
        if self.op.family == "segment":
            return (0,)
        if self.axis is None:
            return tuple(range(rank))
        listed = self.axis if isinstance(self.axis, tuple) else (self.axis,)
        return tuple(sorted(a % rank for a in listed)) if rank else ()

    @property
    def extent(self) -> int:
        return math.prod(self.shape[a] for a in self.axes)

    @property
    def kept(self) -> tuple[int, ...]:
        """The shape with the axes at length 1."""
        return tuple(1 if a in self.axes else n for a, n in enumerate(self.shape))

    def shape_of(self, operand: str) -> tuple[int, ...]:
        op = self.op
        if op.family == "segment":
            if operand == "segment_ids":
                return self.shape[:1]
            if operand in ("output", "d_output"):
                return (self.num_segments, *self.shape[1:])
            return self.shape
        one_a_row = op.family == "reduce" and (
            (op.direction == "forward" and operand == "y")
            or (op.direction == "backward" and operand in ("dy", "y"))
        )
        return self.kept if one_a_row else self.shape

    def forward(self) -> Cell:
        """The forward whose gradient this is."""
        return replace(self, op=OPS[self.op.kind], ties=None)

    def plan(self, threads: int | None = None) -> Any:
        op, preference = self.op, pb.PlanPreference(threads=threads)
        if op.family == "segment":
            describe, plan = SEGMENT_PLANS[op.direction, self.is_sorted]
            made = describe(*self.shape, self.num_segments, self.element, self.out_of_range)
            return plan.select(made, preference)
        describe, plan = PLANS[op.family, op.direction]
        fields: dict[str, Any] = {"element": self.element}
        if op.family == "scan":
            fields |= {"scan_axis": self.axis, "reverse": self.reverse}
        elif op.family == "reduce":
            fields |= {"reduce_axis": self.axis, "correction": self.correction}
        elif op.family == "softmax":
            fields |= {"softmax_axis": self.axis}
        else:
            fields |= {"param": self.weight}
        if self.ties is not None:
            fields["ties"] = self.ties
        return plan.select(describe(op.kind, self.shape, **fields), preference)

    def run_plan(
        self,
        operands: dict[str, Any],
        outputs: dict[str, Any],
        threads: int | None = None,
        workspace: Any = None,
    ) -> None:
        self.plan(threads).run(**operands, **outputs, workspace=workspace)

    def run_function(self, operands: dict[str, Any], out: Any = None, function: Any = None) -> Any:
        """Call the function; a reduction's result is asked for in the keepdims shape."""
        op, named = self.op, dict(operands)
        function = function or getattr(pb, op.name)
        if op.family == "segment":
            first = named.pop("input" if op.direction == "forward" else "d_output")
            keys: dict[str, Any] = {"out_of_range": self.out_of_range, "out": out}
            if op.direction == "forward":
                keys |= {"num_segments": self.num_segments, "sorted": self.is_sorted}
            return function(first, named["segment_ids"], **keys)
        if op.family == "lerp":
            return function(**named, weight=self.weight, out=out)
        keys = {"axis": self.axis, "out": out}
        if op.family == "scan":
            keys["reverse"] = self.reverse
        if op.family == "reduce" and op.direction == "forward":
            keys["keepdims"] = True
        if op.family == "reduce" and op.direction == "backward" and "x" not in op.needs:
            keys["shape"] = self.shape
        if op.kind in ("var", "std"):
            keys["correction"] = self.correction
        if self.ties is not None:
            keys["ties"] = self.ties
        return function(**named, **keys)

    def exact(self, operands: dict[str, np.ndarray]) -> dict[str, Reference]:
        """What the oracle says."""
        op = self.op
        keys: dict[str, Any] = {}
        if op.family in ("scan", "reduce", "softmax"):
            keys["axis"] = self.axis
        if op.family == "scan":
            keys["reverse"] = self.reverse
        if op.family == "reduce":
            keys["correction"] = self.correction if op.kind in ("var", "std") else None
            if op.direction == "backward":
                keys["shape"] = self.shape
        if op.ties:
            keys["ties"] = self.ties
        if op.family == "lerp":
            keys["weight"] = self.weight
        if op.family == "segment":
            keys["out_of_range"] = self.out_of_range
            if op.direction == "forward":
                keys["num_segments"] = self.num_segments
        return reference(op.name, operands, **keys)

    def cover(self, layout: str, edge: str) -> None:
        COVERED.add((self.op.name, self.element, self.op.direction, layout, edge))


def as_tuple(result: Any) -> tuple[Any, ...]:
    return result if isinstance(result, tuple) else (result,)


@dataclass(frozen=True)
class Layout:
    """How the elements of a tensor lie: order of the axes, steps between them, and their signs."""

    order: str = "C"
    step: int = 1
    signs: tuple[int, ...] = (1,)

    def strides(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """In elements, without the signs."""
        rank = len(shape)
        axes = list(range(rank))
        if self.order == "F":
            axes.reverse()
        elif self.order == "rolled":
            axes = axes[1:] + axes[:1]
        strides = [0] * rank
        span = 1
        for a in reversed(axes):
            strides[a] = span * self.step
            span = strides[a] * max(shape[a], 1) + self.step - 1
        return tuple(strides)


LAYOUTS = {
    "C": Layout(),
    "Fortran": Layout("F"),
    "transposed": Layout("rolled"),
    "sliced": Layout(step=2),
    "negative": Layout(signs=(-1,)),
    "mixed": Layout("F", step=3, signs=(-1, 1)),
}


class Fenced:
    """A tensor of some layout in the middle of a poisoned buffer."""

    def __init__(
        self,
        shape: tuple[int, ...],
        dtype: np.dtype,
        layout: str = "C",
        values: np.ndarray | None = None,
        guard: int = GUARD,
    ):
        form = LAYOUTS[layout]
        steps = form.strides(shape)
        signs = [form.signs[a % len(form.signs)] for a in range(len(shape))]
        reach = [max(n - 1, 0) * s for n, s in zip(shape, steps, strict=True)]
        first = guard + sum(r for r, sign in zip(reach, signs, strict=True) if sign < 0)
        item = dtype.itemsize
        self.bytes = np.full((guard + sum(reach) + 1 + guard) * item, POISON, np.uint8)
        self._place = {
            "offset": first * item,
            "strides": tuple(s * sign * item for s, sign in zip(steps, signs, strict=True)),
        }
        self.array: np.ndarray = np.ndarray(shape, dtype, self.bytes, **self._place)
        if values is not None:
            self.array[...] = values

    def is_untouched(self) -> bool:
        """Whether every byte is still poison."""
        return bool((self.bytes == POISON).all())

    def check(self) -> str | None:
        """What is wrong with the memory after a call that should have written the tensor."""
        own = np.frombuffer(self.array.tobytes(), np.uint8).reshape(-1, self.array.itemsize)
        missed = int((own == POISON).all(axis=1).sum())
        if missed:
            return f"{missed} of {len(own)} elements not written"
        around = self.bytes.copy()
        inside = np.ndarray(self.array.shape, self.array.dtype, around, **self._place)
        inside[...] = np.frombuffer(bytes([POISON]) * inside.itemsize, inside.dtype)[0]
        broken = int((around != POISON).sum())
        return f"{broken} bytes around the output were changed" if broken else None


def outputs_for(cell: Cell, layout: str = "C") -> dict[str, Fenced]:
    return {n: Fenced(cell.shape_of(n), cell.dtype, layout) for n in cell.op.outputs}


def run_fenced(
    cell: Cell, operands: dict[str, np.ndarray], layout: str = "C", **how: Any
) -> dict[str, np.ndarray]:
    """Run by plan with fenced operands of a layout; the outputs as C arrays."""
    fenced = {
        n: Fenced(a.shape, a.dtype, layout if a.dtype == cell.dtype else "C", a)
        for n, a in operands.items()
    }
    before = {n: f.bytes.copy() for n, f in fenced.items()}
    outputs = outputs_for(cell, layout)
    cell.run_plan(
        {n: f.array for n, f in fenced.items()}, {n: f.array for n, f in outputs.items()}, **how
    )
    for name, f in outputs.items():
        wrong = f.check()
        assert wrong is None, f"{cell} {layout} {name}: {wrong}"
    for name, f in fenced.items():
        assert np.array_equal(f.bytes, before[name]), f"{cell} {layout}: input {name} was written"
    return {n: f.array.copy(order="C") for n, f in outputs.items()}


def same_bytes(a: np.ndarray, b: np.ndarray) -> bool:
    return a.shape == b.shape and a.dtype == b.dtype and a.tobytes() == b.tobytes()
