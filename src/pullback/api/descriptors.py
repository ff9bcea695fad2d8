"""Descriptors: what a plan is selected for, validated and normalised when made.

Two descriptors that mean the same are equal and hash alike: axes are made non-negative, shapes
become tuples of ints, kinds and element types become enum members. A forward descriptor and its
backward share a base class that holds their common fields and rules.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, TypeVar

from ..core import parse
from ..core.catalog import find, kinds
from ..core.problem import Problem, describe
from ..core.vocabulary import (
    BinaryKind,
    ElementKind,
    OutOfRange,
    ReduceKind,
    ScanKind,
    SegmentKind,
    SoftmaxKind,
    Ties,
    element_kind,
    parse_enum,
)
from ..errors import InvalidProblemError, UnsupportedError

__all__ = [
    "BinaryParamBackwardDescriptor",
    "BinaryParamDescriptor",
    "ReduceBackwardDescriptor",
    "ReduceDescriptor",
    "ScanBackwardDescriptor",
    "ScanDescriptor",
    "SegmentSumBackwardDescriptor",
    "SegmentSumDescriptor",
    "SoftmaxBackwardDescriptor",
    "SoftmaxDescriptor",
    "UnsortedSegmentSumBackwardDescriptor",
    "UnsortedSegmentSumDescriptor",
]

_KindT = TypeVar("_KindT", ScanKind, ReduceKind, SoftmaxKind, BinaryKind)


def _ties(value: object, allowed: tuple[Ties, ...]) -> Ties:
    ties = parse_enum(Ties, value, "ties")
    if ties not in allowed:
        names = ", ".join(allowed)
        raise UnsupportedError(f"ties: expected one of {names}, got {ties.value!r}")
    return ties


def parse_kind(enum_class: type[_KindT], value: object, family: str) -> _KindT:
    """An enum member; or the plain name of a kind that the catalog has beyond the enum's."""
    if isinstance(value, str) and type(value) is str and value in kinds(family):
        # A kind registered at run time has no member and stands for itself.
        return enum_class._value2member_map_.get(value, value)  # type: ignore[arg-type,return-value]
    return parse_enum(enum_class, value, "kind")


class Descriptor:
    """What all descriptors share.

    ``fields`` says under which field a descriptor holds a parameter of its ops.
    """

    family: ClassVar[str]
    direction: ClassVar[str]
    fields: ClassVar[Mapping[str, str]]
    kind: Any
    element: ElementKind

    def _put(self, **fields: object) -> None:
        """Store normalised fields of a frozen dataclass."""
        for name, value in fields.items():
            object.__setattr__(self, name, value)

    def problem(self, given: tuple[str, ...] = ()) -> Problem:
        """What a backend runs, with those operands that may be left out."""
        held = {name: getattr(self, field) for name, field in self.fields.items()}
        kind = str(getattr(self.kind, "value", self.kind)).removeprefix("unsorted_")
        op = find(kind, self.direction)
        shape, segments = self._sizes()
        element = self.element.value
        return describe(op, element, shape, held, given, segments, self.fields)

    def _sizes(self) -> tuple[tuple[int, ...], int | None]:
        """Shape of the operands with an element for every position, and number of segments."""
        return self.input_shape, None  # type: ignore[attr-defined]


@dataclass(frozen=True)
class _Scan(Descriptor):
    family = "scan"
    fields = {"axis": "scan_axis", "reverse": "reverse"}  # noqa: RUF012

    kind: ScanKind
    input_shape: tuple[int, ...]
    scan_axis: int = -1
    reverse: bool = False
    element: ElementKind = ElementKind.F32

    def __post_init__(self) -> None:
        kind = parse_kind(ScanKind, self.kind, "scan")
        element = element_kind(self.element)
        shape = parse.shape(self.input_shape, "input_shape", element.itemsize)
        self._put(
            kind=kind,
            element=element,
            input_shape=shape,
            scan_axis=parse.normalized_axis(self.scan_axis, len(shape), "scan_axis"),
            reverse=parse.flag(self.reverse, "reverse"),
        )


@dataclass(frozen=True)
class ScanDescriptor(_Scan):
    """A scan along one axis.

    Parameters
    ----------
    kind : ScanKind or str
        cumsum, cumprod, cummax, cummin or logcumsumexp.
    input_shape : tuple of int
        Shape of x and y.
    scan_axis : int, default -1
        The axis scanned; negative counts from the end.
    reverse : bool, default False
        Scan from the end.
    element : ElementKind, str or dtype, default "f32"
        Element type.

    Examples
    --------
    >>> ScanDescriptor("cumsum", (2, 3)) == ScanDescriptor("Cumsum", [2, 3], scan_axis=1)
    True
    """

    direction = "forward"


@dataclass(frozen=True)
class ScanBackwardDescriptor(_Scan):
    """The backward of a scan; the fields are those of the forward.

    Parameters
    ----------
    kind, input_shape, scan_axis, reverse, element
        As in :class:`ScanDescriptor`, describing the forward.
    ties : Ties or str, default "first"
        Which of equal running extremes takes the gradient of cummax and cummin: "first" or
        "last". Other kinds ignore it.
    """

    direction = "backward"
    fields = {**_Scan.fields, "ties": "ties"}  # noqa: RUF012

    ties: Ties = Ties.FIRST

    def __post_init__(self) -> None:
        super().__post_init__()
        self._put(ties=_ties(self.ties, (Ties.FIRST, Ties.LAST)))


@dataclass(frozen=True)
class _Reduce(Descriptor):
    family = "reduce"
    fields = {"axis": "reduce_axis", "correction": "correction"}  # noqa: RUF012

    kind: ReduceKind
    input_shape: tuple[int, ...]
    reduce_axis: tuple[int, ...] | int | None = None
    element: ElementKind = ElementKind.F32
    correction: int | float = 1

    def __post_init__(self) -> None:
        kind = parse_kind(ReduceKind, self.kind, "reduce")
        element = element_kind(self.element)
        shape = parse.shape(self.input_shape, "input_shape", element.itemsize)
        self._put(
            kind=kind,
            element=element,
            input_shape=shape,
            reduce_axis=parse.normalized_axes(self.reduce_axis, len(shape), "reduce_axis"),
            correction=parse.correction(self.correction, "correction"),
        )

    @property
    def axes(self) -> tuple[int, ...]:
        """The reduced axes: `reduce_axis` in its normalised type."""
        return self.reduce_axis  # type: ignore[return-value]

    def y_shape(self) -> tuple[int, ...]:
        """Shape of the forward output with the reduced axes kept at length 1."""
        axes = self.axes
        return tuple([1 if i in axes else dim for i, dim in enumerate(self.input_shape)])


@dataclass(frozen=True)
class ReduceDescriptor(_Reduce):
    """A reduction over one axis, several or all.

    Parameters
    ----------
    kind : ReduceKind or str
        sum, mean, max, min, prod, norm2, logsumexp, var or std.
    input_shape : tuple of int
        Shape of x.
    reduce_axis : int, tuple of int or None, default None
        The axes reduced; None means all, ``()`` none. Stored as a sorted tuple.
    element : ElementKind, str or dtype, default "f32"
        Element type.
    correction : int or float, default 1
        Subtracted from the count in var and std. Other kinds ignore it.

    Examples
    --------
    >>> ReduceDescriptor("sum", (2, 3, 4), reduce_axis=(-1, 0)).reduce_axis
    (0, 2)
    """

    direction = "forward"


@dataclass(frozen=True)
class ReduceBackwardDescriptor(_Reduce):
    """The backward of a reduction; the fields are those of the forward.

    Parameters
    ----------
    kind, input_shape, reduce_axis, element, correction
        As in :class:`ReduceDescriptor`, describing the forward.
    ties : Ties or str, default "split"
        How equal extremes share the gradient of max and min: "split" (dy over the count), "all",
        "first" or "last". Other kinds ignore it.

    Examples
    --------
    >>> ReduceBackwardDescriptor("max", (2, 3), reduce_axis=1).dy_shape()
    (2, 1)
    """

    direction = "backward"
    fields = {**_Reduce.fields, "ties": "ties"}  # noqa: RUF012

    ties: Ties = Ties.SPLIT

    def __post_init__(self) -> None:
        super().__post_init__()
        self._put(ties=_ties(self.ties, (Ties.SPLIT, Ties.ALL, Ties.FIRST, Ties.LAST)))

    def dy_shape(self) -> tuple[int, ...]:
        """Shape of dy with the reduced axes kept at length 1."""
        return self.y_shape()


@dataclass(frozen=True)
class _Softmax(Descriptor):
    family = "softmax"
    fields = {"axis": "softmax_axis"}  # noqa: RUF012

    kind: SoftmaxKind
    input_shape: tuple[int, ...]
    softmax_axis: int = -1
    element: ElementKind = ElementKind.F32

    def __post_init__(self) -> None:
        kind = parse_kind(SoftmaxKind, self.kind, "softmax")
        element = element_kind(self.element)
        shape = parse.shape(self.input_shape, "input_shape", element.itemsize)
        self._put(
            kind=kind,
            element=element,
            input_shape=shape,
            softmax_axis=parse.normalized_axis(self.softmax_axis, len(shape), "softmax_axis"),
        )


@dataclass(frozen=True)
class SoftmaxDescriptor(_Softmax):
    """A softmax along one axis.

    Parameters
    ----------
    kind : SoftmaxKind or str
        softmax or log_softmax.
    input_shape : tuple of int
        Shape of x and y.
    softmax_axis : int, default -1
        The axis that sums to one.
    element : ElementKind, str or dtype, default "f32"
        Element type.
    """

    direction = "forward"


@dataclass(frozen=True)
class SoftmaxBackwardDescriptor(_Softmax):
    """The backward of a softmax; the fields are those of :class:`SoftmaxDescriptor`."""

    direction = "backward"


@dataclass(frozen=True)
class _BinaryParam(Descriptor):
    family = "lerp"
    fields = {"weight": "param"}  # noqa: RUF012

    def _sizes(self) -> tuple[tuple[int, ...], int | None]:
        return self.shape, None

    kind: BinaryKind
    shape: tuple[int, ...]
    element: ElementKind
    param: float
    # 0.0 == -0.0, yet they give zeros of different sign; the sign keeps the two apart.
    _param_sign: float = field(init=False, repr=False)

    def __post_init__(self) -> None:
        kind = parse_kind(BinaryKind, self.kind, "lerp")
        element = element_kind(self.element)
        param = parse.real(self.param, "param")
        self._put(
            kind=kind,
            element=element,
            shape=parse.shape(self.shape, "shape", element.itemsize),
            param=param,
            _param_sign=math.copysign(1.0, param),
        )


@dataclass(frozen=True)
class BinaryParamDescriptor(_BinaryParam):
    """A binary elementwise op with a scalar parameter.

    Parameters
    ----------
    kind : BinaryKind or str
        lerp.
    shape : tuple of int
        Shape of a, b and y.
    element : ElementKind, str or dtype
        Element type.
    param : float
        The weight of lerp, a constant; NaN and infinities are allowed and propagate.
    """

    direction = "forward"


@dataclass(frozen=True)
class BinaryParamBackwardDescriptor(_BinaryParam):
    """The backward of a binary op; the fields are those of :class:`BinaryParamDescriptor`."""

    direction = "backward"


@dataclass(frozen=True)
class _Segment(Descriptor):
    family = "segment"
    fields = {"out_of_range": "out_of_range"}  # noqa: RUF012
    is_sorted: ClassVar[bool]

    num_inputs: int
    embedding_dim: int
    num_segments: int
    element: ElementKind = ElementKind.F32
    out_of_range: OutOfRange = OutOfRange.RAISE

    def __post_init__(self) -> None:
        element = element_kind(self.element)
        counts = {
            name: parse.integer(getattr(self, name), name)
            for name in ("num_inputs", "embedding_dim", "num_segments")
        }
        for name, count in counts.items():
            if count < 0:
                raise InvalidProblemError(f"{name}: expected a non-negative integer, got {count}")
        for rows in ("num_inputs", "num_segments"):
            parse.shape(
                (counts[rows], counts["embedding_dim"]), f"{rows} x embedding_dim", element.itemsize
            )
        self._put(
            **counts,
            element=element,
            out_of_range=parse_enum(OutOfRange, self.out_of_range, "out_of_range"),
        )

    def problem(self, given: tuple[str, ...] = ()) -> Problem:
        """What a backend runs, with those operands that may be left out."""
        return replace(super().problem(given), is_sorted=self.is_sorted)

    def _sizes(self) -> tuple[tuple[int, ...], int | None]:
        return self.input_shape(), self.num_segments

    def input_shape(self) -> tuple[int, int]:
        """Shape of the rows that are summed, and of their gradient."""
        return (self.num_inputs, self.embedding_dim)

    def ids_shape(self) -> tuple[int]:
        """Shape of the segment ids."""
        return (self.num_inputs,)

    def output_shape(self) -> tuple[int, int]:
        """Shape of the sums, and of their gradient."""
        return (self.num_segments, self.embedding_dim)


@dataclass(frozen=True)
class SegmentSumDescriptor(_Segment):
    """Sum of rows by id, the ids in non-decreasing order.

    Parameters
    ----------
    num_inputs : int
        Number of rows.
    embedding_dim : int
        Length of a row.
    num_segments : int
        Number of sums.
    element : ElementKind, str or dtype, default "f32"
        Element type of the rows.
    out_of_range : OutOfRange or str, default "raise"
        "raise", or "drop" to skip rows whose id is outside ``[0, num_segments)``.
    """

    kind = SegmentKind.SEGMENT_SUM
    direction = "forward"
    is_sorted = True


@dataclass(frozen=True)
class SegmentSumBackwardDescriptor(_Segment):
    """The backward of a sorted segment sum; fields of :class:`SegmentSumDescriptor`."""

    kind = SegmentKind.SEGMENT_SUM
    direction = "backward"
    is_sorted = True


@dataclass(frozen=True)
class UnsortedSegmentSumDescriptor(_Segment):
    """Sum of rows by id, ids in any order; fields of :class:`SegmentSumDescriptor`."""

    kind = SegmentKind.UNSORTED_SEGMENT_SUM
    direction = "forward"
    is_sorted = False


@dataclass(frozen=True)
class UnsortedSegmentSumBackwardDescriptor(_Segment):
    """The backward of an unsorted segment sum; fields of :class:`SegmentSumDescriptor`."""

    kind = SegmentKind.UNSORTED_SEGMENT_SUM
    direction = "backward"
    is_sorted = False
