"""The words of the library: element types, policies, guarantees and execution handles.

Enum members are strings, so ``Ties.FIRST == "first"`` and either may be passed wherever such a word
is asked for. Frameworks are never imported: their dtypes are recognised by name.
"""

from __future__ import annotations

import difflib
import functools
import operator
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeVar

import numpy as np

from ..errors import InvalidProblemError, UnsupportedError
from ..precision import checked
from .elements import ELEMENTS

__all__ = [
    "BackendKind",
    "ElementKind",
    "KernelSku",
    "MathPrecision",
    "OpCategory",
    "OutOfRange",
    "PlanPreference",
    "PrecisionGuarantee",
    "Stream",
    "Ties",
    "Word",
    "element_kind",
    "parse_enum",
]


class Word(str, Enum):
    """A str-valued enum that prints and formats as its value on every Python version."""

    __str__ = str.__str__

    def __format__(self, spec: str) -> str:
        return str.__format__(self, spec)


class ElementKind(Word):
    """Element types of the operands."""

    F32 = "f32"
    F64 = "f64"
    F16 = "f16"
    BF16 = "bf16"

    @property
    def itemsize(self) -> int:
        """Bytes per element."""
        return ELEMENTS[self.value].itemsize

    @property
    def numpy_dtype(self) -> np.dtype[Any]:
        """The NumPy dtype; bf16 is ``ml_dtypes.bfloat16``."""
        return ELEMENTS[self.value].dtype


class OpCategory(Word):
    """The op families."""

    SCAN = "scan"
    REDUCTION = "reduction"
    SOFTMAX = "softmax"
    BINARY_ELEMENTWISE = "binary_elementwise"
    SEGMENT = "segment"
    RECURRENCE = "recurrence"
    LOSS = "loss"
    OTHER = "other"


class BackendKind(Word):
    """What compiles and runs the kernels."""

    NUMBA = "numba"
    TRITON = "triton"


class MathPrecision(Word):
    """The type in which a kernel computes between load and store."""

    F32 = "f32"
    F64 = "f64"


class Ties(Word):
    """Which elements receive the gradient if several hold the extreme."""

    FIRST = "first"
    LAST = "last"
    SPLIT = "split"
    ALL = "all"


class OutOfRange(Word):
    """What happens to a row whose segment id is outside ``[0, num_segments)``."""

    RAISE = "raise"
    DROP = "drop"


_EnumT = TypeVar("_EnumT", bound=Enum)


def _fold(text: str) -> str:
    """Spelling-insensitive form: LogCumsumExp, log_cumsum_exp and logcumsumexp agree."""
    return text.strip().casefold().replace("_", "").replace("-", "").replace(" ", "")


@functools.cache
def _spellings(enum_class: type[Enum]) -> dict[str, Enum]:
    table: dict[str, Enum] = {}
    for member in enum_class:
        for text in (member.value, member.name):
            table[text] = table[_fold(text)] = member
    return table


def parse_enum(enum_class: type[_EnumT], value: object, what: str) -> _EnumT:
    """Return the member of `enum_class` that `value` names.

    Parameters
    ----------
    enum_class : type of Enum
        A str-valued enum.
    value : member or str
        Case, underscores and hyphens are ignored, so ``"Binary-Elementwise"`` is accepted.
    what : str
        The field or argument, for the message.

    Raises
    ------
    UnsupportedError
        If `value` names no member; the message lists the nearest names and all of them.

    Examples
    --------
    >>> parse_enum(OpCategory, "BinaryElementwise", "category")
    <OpCategory.BINARY_ELEMENTWISE: 'binary_elementwise'>
    """
    if type(value) is enum_class:
        return value
    table = _spellings(enum_class)
    # A member of another enum is a str too, but Ties.FIRST given for a backend is a mistake
    # that happens to have a spelling; members of the wrong class never match.
    if isinstance(value, str) and not isinstance(value, Enum):
        member = table.get(value) or table.get(_fold(value))
        if member is not None:
            return member  # type: ignore[return-value]
        folded = {_fold(m.value): m.value for m in enum_class}
        near = [folded[key] for key in difflib.get_close_matches(_fold(value), folded, n=3)]
    else:
        near = []
    hint = f"; did you mean {' or '.join(map(repr, near))}?" if near else ""
    names = ", ".join(str(m.value) for m in enum_class)
    raise UnsupportedError(f"{what}: expected one of {names}, got {value!r}{hint}")


_ELEMENT_NAMES: Mapping[str, ElementKind] = {
    spelling: kind
    for kind in ElementKind
    for spelling in (kind.value, kind.numpy_dtype.name, *ELEMENTS[kind.value].spellings)
}

_ELEMENTS: dict[Any, ElementKind] = {
    **_ELEMENT_NAMES,
    **{kind.numpy_dtype: kind for kind in ElementKind},
    **{kind.numpy_dtype.type: kind for kind in ElementKind},
}


def element_kind(value: object, what: str = "element") -> ElementKind:
    """Return the :class:`ElementKind` that `value` stands for.

    Parameters
    ----------
    value : ElementKind, str, or a dtype of NumPy, ml_dtypes, torch or JAX
        Strings may be ``"f32"`` or ``"float32"`` style. Python's ``float`` and the string
        ``"float"`` are refused because NumPy and torch disagree on what they mean.
    what : str
        The field or argument, for the message.

    Raises
    ------
    UnsupportedError
        For anything but the four float types.

    Examples
    --------
    >>> element_kind("bfloat16")
    <ElementKind.BF16: 'bf16'>
    """
    if type(value) is ElementKind:
        return value
    if not isinstance(value, Enum):
        try:
            found = _ELEMENTS.get(value)
        except TypeError:  # unhashable
            found = None
        if found is None:
            found = _element_of_foreign(value)
        if found is not None:
            return found
    raise UnsupportedError(
        f"{what}: expected one of f32, f64, f16, bf16 (or the matching dtype), got {value!r}"
    )


def _element_of_foreign(value: object) -> ElementKind | None:
    if isinstance(value, str):
        return _ELEMENT_NAMES.get(value.strip().casefold())
    if type(value).__module__ == "torch":
        framework, _, name = str(value).partition(".")
        return _ELEMENT_NAMES.get(name) if framework == "torch" else None
    # jnp.float32 is a class of its own that carries the NumPy dtype.
    dtype = getattr(value, "dtype", None) if isinstance(value, type) else None
    return _ELEMENTS.get(dtype) if isinstance(dtype, np.dtype) else None


@dataclass(frozen=True)
class PrecisionGuarantee:
    """What a kernel promises about its numbers.

    Attributes
    ----------
    math_precision : MathPrecision
        The type of the arithmetic between load and store.
    accumulator : ElementKind
        The type sums and recurrences are carried in.
    deterministic : bool
        Two runs on the same data give the same bits.
    bit_stable_on_same_hardware : bool
        So do two processes on the same machine.
    bit_stable_across_threads : bool
        So does any thread count.
    bit_stable_across_layouts : bool
        So does any memory layout of the operands.
    compensated : bool
        Sums are carried in two numbers of the accumulator's type, the second one what the first has
        lost in rounding.
    """

    math_precision: MathPrecision
    accumulator: ElementKind
    deterministic: bool = True
    bit_stable_on_same_hardware: bool = True
    bit_stable_across_threads: bool = True
    bit_stable_across_layouts: bool = True
    compensated: bool = False

    def __post_init__(self) -> None:
        precision = parse_enum(MathPrecision, self.math_precision, "math_precision")
        object.__setattr__(self, "math_precision", precision)
        object.__setattr__(self, "accumulator", element_kind(self.accumulator, "accumulator"))


@dataclass(frozen=True)
class KernelSku:
    """Identity of the kernel a plan picked.

    Attributes
    ----------
    category : OpCategory
        The op family.
    op : str
        Name of the op within the family.
    element : ElementKind
        Type of the operands.
    aux_element : str or None
        Type of an auxiliary operand such as segment ids, if there is one.
    layout : str or None
        The memory layout the schedule was picked for.
    epilogue : str or None
        What is fused after the op, if anything.
    arch : str
        The hardware the kernel is compiled for.
    backend : BackendKind
        What compiled it.
    precision_guarantee : PrecisionGuarantee
        What it promises about its numbers.
    """

    category: OpCategory
    op: str
    element: ElementKind
    aux_element: str | None
    layout: str | None
    epilogue: str | None
    arch: str
    backend: BackendKind
    precision_guarantee: PrecisionGuarantee


def thread_count(value: object, what: str, *, alternative: str = "") -> int:
    """A number of threads that was asked for; ``alternative`` is what else may be given."""
    try:
        count = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        count = 0
    if count < 1 or isinstance(value, bool):
        wanted = f"a positive integer{alternative}"
        raise InvalidProblemError(f"{what}: expected {wanted}, got {value!r}")
    return count


def _threads_or_none(value: object) -> int | None:
    return None if value is None else thread_count(value, "threads", alternative=" or None")


@dataclass(frozen=True)
class PlanPreference:
    """What ``select`` should choose; None leaves the choice to pullback.

    Parameters
    ----------
    backend : BackendKind or str, optional
        ``"numba"`` or ``"triton"``.
    threads : int, optional
        Threads to run on. Results do not depend on it.
    precision : {"fast", "tight"}, optional
        How precisely a CPU computes elements narrower than float64; see
        :func:`pullback.get_precision`.
    """

    backend: BackendKind | None = None
    threads: int | None = None
    precision: str | None = None

    def __post_init__(self) -> None:
        if self.backend is not None:
            backend = parse_enum(BackendKind, self.backend, "backend")
            object.__setattr__(self, "backend", backend)
        if self.precision is not None:
            checked(self.precision, "precision")
        object.__setattr__(self, "threads", _threads_or_none(self.threads))


@dataclass(frozen=True)
class Stream:
    """The execution handle of ``run``.

    Parameters
    ----------
    threads : int, optional
        CPU thread count for this run.
    cuda : object, optional
        A ``torch.cuda.Stream`` to launch on.
    """

    threads: int | None = None
    cuda: Any = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "threads", _threads_or_none(self.threads))
