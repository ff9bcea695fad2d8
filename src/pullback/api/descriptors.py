"""Descriptors: what a plan is selected for, validated and normalised when made.

Two descriptors that mean the same are equal and hash alike: axes are made non-negative, shapes
become tuples of ints, kinds and element types become enum members. A forward descriptor and its
backward share a base class that holds their common fields and rules.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar

from ..core.catalog import kinds
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
    "MAX_RANK",
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
    "normalize_axes",
    "normalize_axis",
    "normalize_shape",
]

MAX_RANK = 64

# Byte offsets are computed in int64.
_MAX_BYTES = 2**63 - 1

_KindT = TypeVar("_KindT", ScanKind, ReduceKind, SoftmaxKind, BinaryKind)

# NaN differs from itself, so descriptors (and the plan caches keyed by them) would never match
# unless every NaN parameter is one and the same object.
_NAN = math.nan


def _integer(value: object, what: str) -> int:
    if type(value) is int:
        return value
    try:
        if isinstance(value, bool):
            raise TypeError
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise InvalidProblemError(
            f"{what}: expected an integer, got {value!r} of type {type(value).__name__}"
        ) from None


def normalize_shape(shape: Iterable[Any], what: str, itemsize: int = 8) -> tuple[int, ...]:
    """Return `shape` as a tuple of ints, or raise InvalidProblemError naming `what`."""
    try:
        if isinstance(shape, (str, bytes)):
            raise TypeError
        items = tuple(shape)
    except TypeError:
        raise InvalidProblemError(
            f"{what}: expected a tuple of integers, got {shape!r} of type {type(shape).__name__}"
        ) from None
    dims = tuple([_integer(dim, what) for dim in items])
    if len(dims) > MAX_RANK:
        raise InvalidProblemError(f"{what}: expected rank at most {MAX_RANK}, got {len(dims)}")
    span = itemsize
    for dim in dims:
        if dim < 0:
            raise InvalidProblemError(f"{what}: expected non-negative dims, got {dims}")
        span *= dim or 1
    if span > _MAX_BYTES:
        raise InvalidProblemError(f"{what}: expected fewer than 2**63 bytes, got {dims}")
    return dims


def normalize_axis(axis: object, rank: int, what: str) -> int:
    """Return `axis` as an int in ``[0, rank)``; a rank-0 tensor has the one axis 0 (or -1)."""
    index = _integer(axis, what)
    extent = rank or 1
    if not -extent <= index < extent:
        raise InvalidProblemError(
            f"{what}: expected an axis in [{-extent}, {extent - 1}] for rank {rank}, got {index}"
        )
    return index + extent if index < 0 else index


def normalize_axes(axis: object, rank: int, what: str) -> tuple[int, ...]:
    """Return an int, tuple of ints or None (all axes) as a sorted tuple of axes.

    A rank-0 tensor gives ``()``, as does an empty tuple, which reduces nothing.
    """
    if axis is None:
        return tuple(range(rank))
    if isinstance(axis, (tuple, list)):
        axes = sorted([normalize_axis(item, rank, what) for item in axis])
        for left, right in itertools.pairwise(axes):
            if left == right:
                raise InvalidProblemError(f"{what}: expected distinct axes, got {axis!r}")
    else:
        axes = [normalize_axis(axis, rank, what)]
    return tuple(axes) if rank else ()


def _flag(value: object, what: str) -> bool:
    if value is True or value is False:
        return value
    if type(value).__name__ in ("bool", "bool_") and type(value).__module__ == "numpy":
        return bool(value)
    raise InvalidProblemError(f"{what}: expected True or False, got {value!r}")


def _real(value: object, what: str) -> float:
    try:
        if isinstance(value, (str, bytes, bool)):
            raise TypeError
        number = float(value)  # type: ignore[arg-type]
    except OverflowError:
        raise InvalidProblemError(
            f"{what}: expected a number that a float holds, got one beyond it"
        ) from None
    except (TypeError, ValueError):
        raise InvalidProblemError(f"{what}: expected a real number, got {value!r}") from None
    return _NAN if math.isnan(number) else number


def _correction(value: object, what: str) -> int | float:
    number = _real(value, what)
    if not math.isfinite(number):
        raise InvalidProblemError(f"{what}: expected a finite number, got {value!r}")
    return int(number) if number.is_integer() else number


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


class _Normalized:
    """Mix-in that lets ``__post_init__`` of a frozen dataclass store the normalised fields."""

    def _put(self, **fields: object) -> None:
        for name, value in fields.items():
            object.__setattr__(self, name, value)


@dataclass(frozen=True)
class _Scan(_Normalized):
    kind: ScanKind
    input_shape: tuple[int, ...]
    scan_axis: int = -1
    reverse: bool = False
    element: ElementKind = ElementKind.F32

    def __post_init__(self) -> None:
        kind = parse_kind(ScanKind, self.kind, "scan")
        element = element_kind(self.element)
        shape = normalize_shape(self.input_shape, "input_shape", element.itemsize)
        self._put(
            kind=kind,
            element=element,
            input_shape=shape,
            scan_axis=normalize_axis(self.scan_axis, len(shape), "scan_axis"),
            reverse=_flag(self.reverse, "reverse"),
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

    ties: Ties = Ties.FIRST

    def __post_init__(self) -> None:
        super().__post_init__()
        self._put(ties=_ties(self.ties, (Ties.FIRST, Ties.LAST)))


@dataclass(frozen=True)
class _Reduce(_Normalized):
    kind: ReduceKind
    input_shape: tuple[int, ...]
    reduce_axis: tuple[int, ...] | int | None = None
    element: ElementKind = ElementKind.F32
    correction: int | float = 1

    def __post_init__(self) -> None:
        kind = parse_kind(ReduceKind, self.kind, "reduce")
        element = element_kind(self.element)
        shape = normalize_shape(self.input_shape, "input_shape", element.itemsize)
        self._put(
            kind=kind,
            element=element,
            input_shape=shape,
            reduce_axis=normalize_axes(self.reduce_axis, len(shape), "reduce_axis"),
            correction=_correction(self.correction, "correction"),
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

    ties: Ties = Ties.SPLIT

    def __post_init__(self) -> None:
        super().__post_init__()
        self._put(ties=_ties(self.ties, (Ties.SPLIT, Ties.ALL, Ties.FIRST, Ties.LAST)))

    def dy_shape(self) -> tuple[int, ...]:
        """Shape of dy with the reduced axes kept at length 1."""
        return self.y_shape()


@dataclass(frozen=True)
class _Softmax(_Normalized):
    kind: SoftmaxKind
    input_shape: tuple[int, ...]
    softmax_axis: int = -1
    element: ElementKind = ElementKind.F32

    def __post_init__(self) -> None:
        kind = parse_kind(SoftmaxKind, self.kind, "softmax")
        element = element_kind(self.element)
        shape = normalize_shape(self.input_shape, "input_shape", element.itemsize)
        self._put(
            kind=kind,
            element=element,
            input_shape=shape,
            softmax_axis=normalize_axis(self.softmax_axis, len(shape), "softmax_axis"),
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


@dataclass(frozen=True)
class SoftmaxBackwardDescriptor(_Softmax):
    """The backward of a softmax; the fields are those of :class:`SoftmaxDescriptor`."""


@dataclass(frozen=True)
class _BinaryParam(_Normalized):
    kind: BinaryKind
    shape: tuple[int, ...]
    element: ElementKind
    param: float
    # 0.0 == -0.0, yet they give zeros of different sign; the sign keeps the two apart.
    _param_sign: float = field(init=False, repr=False)

    def __post_init__(self) -> None:
        kind = parse_kind(BinaryKind, self.kind, "lerp")
        element = element_kind(self.element)
        param = _real(self.param, "param")
        self._put(
            kind=kind,
            element=element,
            shape=normalize_shape(self.shape, "shape", element.itemsize),
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


@dataclass(frozen=True)
class BinaryParamBackwardDescriptor(_BinaryParam):
    """The backward of a binary op; the fields are those of :class:`BinaryParamDescriptor`."""


@dataclass(frozen=True)
class _Segment(_Normalized):
    kind: ClassVar[SegmentKind]

    num_inputs: int
    embedding_dim: int
    num_segments: int
    element: ElementKind = ElementKind.F32
    out_of_range: OutOfRange = OutOfRange.RAISE

    def __post_init__(self) -> None:
        element = element_kind(self.element)
        counts = {
            name: _integer(getattr(self, name), name)
            for name in ("num_inputs", "embedding_dim", "num_segments")
        }
        for name, count in counts.items():
            if count < 0:
                raise InvalidProblemError(f"{name}: expected a non-negative integer, got {count}")
        for rows in ("num_inputs", "num_segments"):
            normalize_shape(
                (counts[rows], counts["embedding_dim"]), f"{rows} x embedding_dim", element.itemsize
            )
        self._put(
            **counts,
            element=element,
            out_of_range=parse_enum(OutOfRange, self.out_of_range, "out_of_range"),
        )

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


@dataclass(frozen=True)
class SegmentSumBackwardDescriptor(_Segment):
    """The backward of a sorted segment sum; fields of :class:`SegmentSumDescriptor`."""

    kind = SegmentKind.SEGMENT_SUM


@dataclass(frozen=True)
class UnsortedSegmentSumDescriptor(_Segment):
    """Sum of rows by id, ids in any order; fields of :class:`SegmentSumDescriptor`."""

    kind = SegmentKind.UNSORTED_SEGMENT_SUM


@dataclass(frozen=True)
class UnsortedSegmentSumBackwardDescriptor(_Segment):
    """The backward of an unsorted segment sum; fields of :class:`SegmentSumDescriptor`."""

    kind = SegmentKind.UNSORTED_SEGMENT_SUM
