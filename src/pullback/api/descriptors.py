"""What a plan is selected for: an op, its sizes, element type and parameters.

All of it is validated and brought into one form when a descriptor is made: axes are counted from
the front, shapes become tuples of ints, element types enum members. Two that mean the same are
equal and hash alike.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import FrozenInstanceError
from types import MappingProxyType
from typing import Any, ClassVar

from ..core import parse
from ..core.catalog import OPS, catalog
from ..core.declare import REQUIRED, Op, Operand, Parameter, Role
from ..core.problem import Problem, describe, parsed
from ..core.vocabulary import ElementKind, element_kind
from ..errors import InvalidProblemError, UnsupportedError

# What a descriptor's shape and number of segments tell, and what is not for a plan to say.
_TOLD = ("shape", "num_inputs", "num_segments", "keepdims")


def operands_of(op: Op) -> tuple[Operand, ...]:
    """The operands that a plan reads: of those that mark borders, only the marks themselves."""
    return tuple(o for o in op.reads if o.role is not Role.OFFSETS or o.symbol == o.name)


def cuts_of(op: Op) -> tuple[Operand, ...]:
    """The operands that may cut the rows of a segment op; any other op has none."""
    return tuple(o for o in operands_of(op) if o.role in (Role.IDS, Role.OFFSETS))


def parameters_of(op: Op) -> dict[str, Parameter]:
    """The parameters of an op that a descriptor holds."""
    return {p.name: p for p in op.parameters if p.name not in _TOLD}


class Descriptor:
    """An op on operands of one shape and element type, with its parameters.

    Parameters
    ----------
    op : str or Op
        The op, or its name.
    shape : tuple of int
        Shape of the full-size operands; for a segment op (rows, columns).
    element : ElementKind, str or dtype, default "f32"
        Element type.
    segments : int, optional
        Number of segments, for a segment op.
    **parameters
        Those of the op's function, by name. One that may also be an array can be left out; then
        ``run`` needs the array.

    Examples
    --------
    >>> Descriptor("cumsum", (2, 3)) == Descriptor("cumsum", [2, 3], axis=1)
    True
    """

    # Parameters that no descriptor of the class leaves to an array.
    always: ClassVar[frozenset[str]] = frozenset()

    op: Op
    shape: tuple[int, ...]
    element: ElementKind
    segments: int | None
    parameters: Mapping[str, Any]

    def __init__(
        self,
        op: str | Op,
        shape: Iterable[Any],
        element: object = ElementKind.F32,
        *,
        segments: int | None = None,
        **parameters: Any,
    ):
        self._settle(_op(op), shape, element, segments, parameters, {})

    def _settle(
        self,
        op: Op,
        shape: Iterable[Any],
        element: object,
        segments: int | None,
        parameters: Mapping[str, Any],
        called: Mapping[str, str],
    ) -> None:
        """Hold all that a descriptor says in its one form; ``called`` are the caller's names."""
        kind = element_kind(element)
        dims = parse.shape(shape, called.get("shape", "shape"), kind.itemsize)
        count = _segments(op, dims, segments, kind, called.get("segments", "segments"))
        known = parameters_of(op)
        for name in parameters:
            if name not in known:
                raise TypeError(
                    f"{op.name} has no parameter {name!r} in a descriptor; it has "
                    f"{', '.join(known) or 'none'}"
                )
        held = {}
        for name, p in known.items():
            value = parameters.get(name, p.default)
            if name not in parameters and name in op.optional:
                continue
            if value is REQUIRED:
                raise TypeError(f"{op.name}: missing a required parameter: {name!r}")
            held[name] = in_one_form(p, value, len(dims), called.get(name, name))
        self._put(
            op=op, shape=dims, element=kind, segments=count, parameters=MappingProxyType(held)
        )

    def _put(self, **attributes: object) -> None:
        for name, value in attributes.items():
            object.__setattr__(self, name, value)

    def __setattr__(self, name: str, value: object = None) -> None:
        raise FrozenInstanceError(f"cannot change field {name!r}")

    __delattr__ = __setattr__

    def _key(self) -> tuple[Any, ...]:
        # A NaN finds itself by its text, and -0.0 is not 0.0.
        told = {n: v.hex() if type(v) is float else v for n, v in self.parameters.items()}
        return (self.op.name, self.shape, self.element, self.segments, tuple(told.items()))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Descriptor) or type(other) is not type(self):
            return NotImplemented
        return self.op == other.op and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def _arguments(self) -> dict[str, Any]:
        """What makes an equal one."""
        name = self.op.name
        op = name if OPS.get(name) is self.op else self.op
        sizes = {"shape": self.shape, "element": self.element.value}
        cut = {} if self.segments is None else {"segments": self.segments}
        return {"op": op, **sizes, **cut, **self.parameters}

    def __reduce__(self) -> tuple[Any, ...]:
        return _made, (type(self), self._arguments())

    def __repr__(self) -> str:
        shown = self._arguments() | {"op": self.op.name}
        listed = ", ".join(f"{n}={v!r}" for n, v in shown.items())
        return f"{type(self).__name__}({listed})"

    @classmethod
    def ops(cls) -> list[Op]:
        """The ops that a descriptor of this class may be of."""
        return list(catalog())

    @property
    def axes(self) -> tuple[int, ...]:
        """The op's axes, ascending; all of them where it has none of its own."""
        if self.segments is not None:
            return (0,)
        axis = self.parameters.get("axis", tuple(range(len(self.shape))))
        return axis if isinstance(axis, tuple) else (axis,)[: len(self.shape)]

    def problem(self, given: tuple[str, ...] = ()) -> Problem:
        """What a backend runs, with those operands that may be left out."""
        element, segments = self.element.value, self.segments
        return describe(self.op, element, self.shape, self.parameters, given, segments)


def _made(cls: type[Descriptor], arguments: Mapping[str, Any]) -> Descriptor:
    return cls(**arguments)


def _op(op: object) -> Op:
    if isinstance(op, Op):
        return op
    found = OPS.get(op) if isinstance(op, str) else None
    if found is None:
        near = difflib.get_close_matches(str(op), OPS, n=2)
        hint = f"; did you mean {' or '.join(map(repr, near))}?" if near else ""
        raise UnsupportedError(f"op: expected the name of an op, got {op!r}{hint}")
    return found


def _segments(
    op: Op, shape: tuple[int, ...], segments: object, element: ElementKind, what: str
) -> int | None:
    if not cuts_of(op):
        if segments is not None:
            raise InvalidProblemError(f"{what}: expected None for {op.name}, got {segments!r}")
        return None
    if len(shape) != 2:
        raise InvalidProblemError(f"shape: expected (rows, columns) for {op.name}, got {shape}")
    count = parse.count(segments, what)
    parse.shape((count, shape[1]), what, element.itemsize)
    return count


def in_one_form(parameter: Parameter, value: object, rank: int, what: str) -> Any:
    """A value of a parameter with its axes counted from the front."""
    found = parsed(parameter, value, what)
    if parameter.parse is parse.axis:
        return parse.normalized_axis(found, rank, what)
    return parse.normalized_axes(found, rank, what) if parameter.parse is parse.axes else found
