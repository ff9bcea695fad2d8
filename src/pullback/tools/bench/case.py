"""A case: one op on one shape, dtype and axis, with its plan, its call and its useful bytes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ...api import descriptors as d
from ...api import plan as p
from ...api.functions import FUNCTIONS
from ...core import parse
from ...core.declare import Op, Role
from ...core.vocabulary import ElementKind, PlanPreference
from ...formulas.record import names_read

_PLANS: Mapping[tuple[str, str], tuple[Any, Any]] = {
    ("scan", "forward"): (d.ScanDescriptor, p.ScanPlan),
    ("scan", "backward"): (d.ScanBackwardDescriptor, p.ScanBackwardPlan),
    ("reduce", "forward"): (d.ReduceDescriptor, p.ReducePlan),
    ("reduce", "backward"): (d.ReduceBackwardDescriptor, p.ReduceBackwardPlan),
    ("softmax", "forward"): (d.SoftmaxDescriptor, p.SoftmaxPlan),
    ("softmax", "backward"): (d.SoftmaxBackwardDescriptor, p.SoftmaxBackwardPlan),
    ("lerp", "forward"): (d.BinaryParamDescriptor, p.BinaryParamPlan),
    ("lerp", "backward"): (d.BinaryParamBackwardDescriptor, p.BinaryParamBackwardPlan),
}
_SEGMENT_PLANS: Mapping[tuple[str, bool], tuple[Any, Any]] = {
    ("forward", True): (d.SegmentSumDescriptor, p.SegmentSumPlan),
    ("forward", False): (d.UnsortedSegmentSumDescriptor, p.UnsortedSegmentSumPlan),
    ("backward", True): (d.SegmentSumBackwardDescriptor, p.SegmentSumBackwardPlan),
    ("backward", False): (d.UnsortedSegmentSumBackwardDescriptor, p.UnsortedSegmentSumBackwardPlan),
}


@dataclass(frozen=True)
class Case:
    """One op on one problem.

    Attributes
    ----------
    op, element
        The op and the element type of its operands.
    shape
        Shape of the full operands; for a segment op (rows, embedding).
    axis
        The axis, or axes of a reduction (None: all). An op without an axis has None.
    segments, order
        Number of segments, and whether their ids are "sorted" or "random".
    reverse, ties, correction, weight, out_of_range
        Parameters of the op; those it does not have are ignored.
    """

    op: Op
    element: str
    shape: tuple[int, ...]
    axis: int | tuple[int, ...] | None = -1
    segments: int = 0
    order: str | None = None
    reverse: bool = False
    ties: str | None = None
    correction: float = 1
    weight: float = 0.25
    out_of_range: str = "raise"

    @property
    def family(self) -> str:
        """The op's family."""
        return self.op.family

    @property
    def axes(self) -> tuple[int, ...]:
        """The axes, non-negative and ascending; all of them where the op has none of its own."""
        if self.family == "lerp":
            return tuple(range(len(self.shape)))
        return parse.normalized_axes(self.axis, len(self.shape), "axis")

    @property
    def extent(self) -> int:
        """Elements along the axes; for a segment sum, the mean number of rows in a segment."""
        if self.family == "segment":
            return -(-self.shape[0] // max(1, self.segments))
        return math.prod(self.shape[a] for a in self.axes)

    @property
    def kept_shape(self) -> tuple[int, ...]:
        """The shape with the axes at length 1."""
        axes = self.axes
        return tuple(1 if k in axes else n for k, n in enumerate(self.shape))

    def shape_of(self, operand: str) -> tuple[int, ...]:
        """Shape of an operand of the plan."""
        if self.family == "segment":
            if operand == "segment_ids":
                return self.shape[:1]
            return self.shape if operand in ("input", "d_input") else (self.segments, self.shape[1])
        return self.kept_shape if self.op.operand(operand).role is Role.ROW else self.shape

    @property
    def useful_bytes(self) -> int:
        """Bytes of every operand that must be read or written, each once."""
        item = ElementKind(self.element).itemsize
        return sum(
            math.prod(self.shape_of(name)) * (8 if name == "segment_ids" else item)
            for name in (*self.reads, *self.op.outputs)
        )

    @property
    def reads(self) -> tuple[str, ...]:
        """The inputs that the formula looks at; a product, say, is recomputed and y left alone."""
        if self.family == "segment":
            return self.op.inputs
        named = names_read(self.op.record((self.ties,) if self.ties else ()))
        return tuple(n for n in self.op.inputs if n in named or f"{n}_before" in named)

    def plan(self, threads: int | None = None) -> Any:
        """A plan for the case."""
        preference = PlanPreference(threads=threads)
        op = self.op
        if self.family == "segment":
            made, selected = _SEGMENT_PLANS[op.direction, self.order == "sorted"]
            fields = (*self.shape, self.segments, self.element, self.out_of_range)
            return selected.select(made(*fields), preference)
        made, selected = _PLANS[self.family, op.direction]
        named: dict[str, Any] = {"element": self.element}
        if self.family == "scan":
            named |= {"scan_axis": self.axis, "reverse": self.reverse}
        elif self.family == "reduce":
            named |= {"reduce_axis": self.axis, "correction": self.correction}
        elif self.family == "softmax":
            named["softmax_axis"] = self.axis
        else:
            named["param"] = self.weight
        if op.ties and self.ties:
            named["ties"] = self.ties
        return selected.select(made(op.kind, self.shape, **named), preference)

    def call(self, operands: Mapping[str, Any]) -> Any:
        """What the function of the op returns for the operands of the plan."""
        op, function = self.op, FUNCTIONS[self.op.name]
        read = [operands[n] for n in op.inputs]
        if self.family == "segment":
            policy = {"out_of_range": self.out_of_range}
            if op.direction == "backward":
                return function(*read, **policy)
            return function(*read, self.segments, sorted=self.order == "sorted", **policy)
        if self.family == "lerp":
            if op.direction == "backward":
                return function(*read, weight=self.weight)
            return function(*read, self.weight)
        keywords: dict[str, Any] = {"axis": self.axis}
        if self.family == "scan":
            keywords["reverse"] = self.reverse
        if op.kind in ("var", "std"):
            keywords["correction"] = self.correction
        if op.ties and self.ties:
            keywords["ties"] = self.ties
        if op.direction == "forward":
            if self.family == "reduce":
                keywords["keepdims"] = True
            return function(operands["x"], **keywords)
        if self.family == "reduce" and "x" not in op.needs:
            keywords["shape"] = self.shape
        keywords |= {n: operands[n] for n in ("x", "y") if n in op.needs}
        return function(operands["dy"], **keywords)

    @property
    def shape_label(self) -> str:
        """The shape, and for a segment op the number of segments and the order of the ids."""
        text = "x".join(map(str, self.shape)) or "scalar"
        return f"{text}->{self.segments} {self.order}" if self.family == "segment" else text

    @property
    def axis_label(self) -> str:
        """The axis as text."""
        if self.family in ("lerp", "segment"):
            return "-"
        return "all" if self.axis is None else str(self.axis).replace(" ", "")

    @property
    def key(self) -> tuple[str, str, str, str]:
        """What tells cases apart, in a form that survives a file."""
        return self.op.name, self.element, self.shape_label, self.axis_label
