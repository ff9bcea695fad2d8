"""A case: one op on one problem, and all that follows from the op's row.

Tests, benchmark, certificate and files share it: which operands there are and of which shapes and
types, how the function is called, what runs as a plan, what the oracle is asked.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from ..api.descriptors import Descriptor, parameters_of
from ..api.functions import NAMED, function_named, make_function
from ..api.plan import Plan
from ..core import parse
from ..core.catalog import OPS
from ..core.declare import REQUIRED, Op, Operand, Role, Type
from ..core.elements import ELEMENTS
from ..core.pair import pair_of
from ..core.problem import Problem, describe
from ..core.vocabulary import PlanPreference
from ..formulas.bind import primitives_of
from ..formulas.record import Formula, Monoid, RowFormula, functions_of, is_pointwise

# Parameters that tell a size which a case has anyway.
SIZES = ("shape", "num_inputs", "num_segments")
# What a parameter without a default is, where neither the caller nor its row says.
_USUAL: Mapping[Any, Any] = {
    parse.real: 0.25,
    parse.fraction: 0.75,
    parse.integer: 1,
    parse.count: 1,
}
_CUTS = (Role.IDS, Role.OFFSETS)


def cuts(op: Op) -> tuple[Operand, ...]:
    """What may cut the rows of an op into segments; nothing where it has an axis instead."""
    if op.parameter("axis") is not None:
        return ()
    return tuple(o for o in op.reads if o.role in _CUTS)


@lru_cache(256)
def function_of(op: Op) -> Any:
    """The function of an op, also of one that was registered at run time."""
    return function_named(op.name) if op.name in NAMED else make_function(op)


@dataclass(frozen=True)
class Case:
    """One op on one problem; made by :meth:`of`.

    Attributes
    ----------
    op, element
        The op and its element type.
    shape
        Shape of the operands with an element for every position; of a segment op (rows, columns).
    parameters
        Values by name; those that are not here have their defaults.
    given
        The operands that may be left out and are not.
    segments, is_sorted
        Of a segment op: the number of segments, and whether its ids ascend.
    """

    op: Op
    element: str
    shape: tuple[int, ...]
    parameters: Mapping[str, Any] = field(default_factory=dict, hash=False)
    given: tuple[str, ...] = ()
    segments: int | None = None
    is_sorted: bool = False

    @classmethod
    def of(
        cls,
        op: Op,
        element: str,
        shape: tuple[int, ...],
        given: tuple[str, ...] = (),
        segments: int | None = None,
        is_sorted: bool = False,
        **parameters: Any,
    ) -> Case:
        """A case in which parameters and operands that the op does not have are left out.

        Parameters without a default get a usual value where none is said, and rows are cut by what
        the op names first.
        """
        given = tuple(n for n in op.optional if n in given)
        held = {p.name: parameters[p.name] for p in op.parameters if p.name in parameters}
        for p in op.parameters:
            if p.default is REQUIRED and p.name not in SIZES:
                held.setdefault(p.name, _USUAL.get(p.parse) if p.usual is None else p.usual)
        cutting = cuts(op)
        if not cutting:
            return cls(op, element, shape, held, given)
        if not any(not o.optional or o.name in given for o in cutting):
            given = (*given, cutting[0].name)
        if segments is None:
            segments = -(-shape[0] // 4)
        return cls(op, element, shape, held, given, segments, is_sorted)

    def but(self, **changes: Any) -> Case:
        """The same with other fields or parameters."""
        fields = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        parameters = dict(fields.pop("parameters"))
        for name, value in changes.items():
            (fields if name in fields else parameters)[name] = value
        return Case.of(**fields, **parameters)

    def get(self, name: str) -> Any:
        """The value of a parameter; None where the op has none of that name."""
        p = self.op.parameter(name)
        return None if p is None else self.parameters.get(name, p.default)

    @cached_property
    def problem(self) -> Problem:
        """The problem it is."""
        made = describe(
            self.op, self.element, self.shape, self.arguments, self.given, self.segments
        )
        return dataclasses.replace(made, is_sorted=self.is_sorted)

    @property
    def arguments(self) -> dict[str, Any]:
        """Parameters as the function takes them; results keep the op's axes."""
        found = {n: v for n, v in self.parameters.items() if n not in self.given}
        sizes = {"shape": self.shape, "num_segments": self.segments}
        sizes["num_inputs"] = self.shape[0] if self.shape else None
        by_ids = any(o.role is Role.IDS and o.name in self._names for o in self.op.reads)
        for p in self.op.parameters:
            if p.name in SIZES and (by_ids or p.name != "num_segments"):
                found[p.name] = sizes[p.name]
        if self.op.parameter("keepdims"):
            found.setdefault("keepdims", True)
        if self.op.parameter("sorted"):
            found["sorted"] = self.is_sorted
        return found

    @property
    def _names(self) -> tuple[str, ...]:
        return tuple(o.name for o in self.op.reads if not o.optional or o.name in self.given)

    @property
    def axes(self) -> tuple[int, ...]:
        """The axes, non-negative and ascending; all of them where the op has none of its own."""
        return self.problem.axes

    @property
    def extent(self) -> int:
        """Elements along the axes."""
        return self.problem.extent

    @property
    def is_segmented(self) -> bool:
        """Whether ids or offsets cut the rows."""
        return self.segments is not None

    @property
    def is_pointwise(self) -> bool:
        """Whether elements do not depend on each other, nor on what they share in a row."""
        has_rows = self.is_segmented or self.op.parameter("axis") is not None
        return not has_rows and is_pointwise(self.formula)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The NumPy dtype of the element type."""
        return ELEMENTS[self.element].dtype

    @property
    def reads(self) -> tuple[str, ...]:
        """The operands that are read."""
        return tuple(o.name for o in self.problem.reads)

    @property
    def outputs(self) -> tuple[str, ...]:
        """The operands that are written, those that somebody must ask for if somebody does."""
        return tuple(
            o.name
            for o in self.problem.writes
            if o.asked_by in self.op.inputs or self.get(o.asked_by) in (None, True)
        )

    @property
    def floats(self) -> tuple[str, ...]:
        """The operands read that hold numbers to compute with."""
        return tuple(o.name for o in self.problem.reads if o.type in (Type.ELEMENT, Type.STATE))

    def role(self, operand: str) -> Role:
        """How many elements an operand has."""
        return self.op.operand(operand).role

    def shape_of(self, operand: str) -> tuple[int, ...]:
        """Shape of an operand of the plan."""
        return self.problem.shape_of(operand)

    def dtype_of(self, operand: str) -> np.dtype[Any]:
        """The type of an operand; ids are int64, and a state holds all it can."""
        match self.op.operand(operand).type:
            case Type.ELEMENT:
                return self.dtype
            case Type.BOOL:
                return np.dtype(np.bool_)
            case Type.INDEX:
                return np.dtype(np.int64)
            case Type.STATE:
                return np.dtype(np.float64)

    @property
    def looks_at(self) -> tuple[str, ...]:
        """The inputs that the formula looks at; a product, say, is recomputed and y left alone."""
        used = {*self.problem.used(Role.ELEMENT), *self.problem.used(Role.ROW)}
        return tuple(o.name for o in self.problem.reads if o in used or o.role in _CUTS)

    @property
    def useful_bytes(self) -> int:
        """Bytes of every operand that must be read or written, each once."""
        names = (*self.looks_at, *self.outputs)
        return sum(math.prod(self.shape_of(n)) * self.dtype_of(n).itemsize for n in names)

    def plan(self, threads: int | None = None, **preference: Any) -> Any:
        """A plan for the case."""
        known = parameters_of(self.op)
        held = {n: v for n, v in self.parameters.items() if n in known and n not in self.given}
        if "sorted" in known:
            held["sorted"] = self.is_sorted
        made = Descriptor(self.op, self.shape, self.element, segments=self.segments, **held)
        return Plan.select(made, PlanPreference(threads=threads, **preference))

    @property
    def ulps(self) -> float:
        """Units in the last place that a result may be off, beside what its sums lose."""
        from ..cpu.precision import is_in_float32

        return 2.0 if self.element == "f32" and is_in_float32(self.problem) else 1.0

    def run(
        self,
        operands: Mapping[str, Any],
        outputs: Mapping[str, Any],
        threads: int | None = None,
        workspace: Any = None,
    ) -> None:
        """Run as a plan into the caller's outputs."""
        self.plan(threads).run(**operands, **outputs, workspace=workspace)

    def call(self, operands: Mapping[str, Any], out: Any = None, function: Any = None) -> Any:
        """What the function returns for the operands of the plan."""
        function = function or function_of(self.op)
        return function(**operands, **self.arguments, out=out)

    def results(self, operands: Mapping[str, Any], out: Any = None) -> dict[str, Any]:
        """What the function returns, by output."""
        returned = self.call(operands, out)
        several = returned if isinstance(returned, tuple) else (returned,)
        names = self.op.outputs if len(several) == len(self.op.outputs) else self.outputs
        return {n: r for n, r in zip(names, several, strict=True) if r is not None}

    def exact(self, operands: Mapping[str, np.ndarray]) -> dict[str, Any]:
        """What the oracle says, by output."""
        from ..oracle import reference

        asked = {o.asked_by for o in self.op.writes if o.asked_by not in self.op.inputs}
        drop = {"keepdims", "sorted", *asked}
        if not self.is_segmented:
            drop |= {"num_inputs", "num_segments"}
        options = {n: v for n, v in self.arguments.items() if n not in drop}
        found = reference(self.op.name, operands, **options)
        return {n: found[n] for n in self.outputs}

    @property
    def pair_forward(self) -> Op | None:
        """The op whose gradient this one is; None of a forward."""
        if self.op.direction == "forward" or self.op.kind not in OPS:
            return None
        return pair_of(self.op.kind).forward

    @property
    def cotangents(self) -> tuple[str, ...]:
        """The operands that are gradients by an output of the forward."""
        return tuple(pair_of(self.op.kind).cotangents) if self.pair_forward else ()

    def forward(self) -> Case:
        """The forward whose gradient this is, with the outputs that it saves."""
        op = self.pair_forward
        assert op is not None
        taken = {*self.reads, *pair_of(self.op.kind).cotangents.values()}
        flags = {o.asked_by: True for o in op.writes if o.asked_by and o.name in taken}
        return self.but(op=op, **flags)

    @property
    def formula(self) -> Formula:
        """The formula record."""
        return self.problem.formula

    def calls(self, primitive: str) -> bool:
        """Whether the formula calls a primitive."""
        return any(primitive in primitives_of(f) for f in functions_of(self.formula))

    @property
    def _with_forward(self) -> tuple[Op, ...]:
        return (self.op, self.pair_forward) if self.pair_forward else (self.op,)

    @property
    def has_exponentials(self) -> bool:
        """Whether the op or its forward is made of exponentials of its operands."""
        made = (f for op in self._with_forward for f in functions_of(op.record()))
        return any("exp" in primitives_of(f) for f in made)

    @property
    def has_products(self) -> bool:
        """Whether the op or its forward multiplies the elements of a row.

        What may leave the range inside is held as a mantissa and an exponent; a sum of squares is
        so in float64 only.
        """
        folds = (m for op in self._with_forward for m in monoids(op.record(element="f32")))
        return any("mantissa" in primitives_of(m.combine) for m in folds)

    @property
    def keeps_range(self) -> bool:
        """Whether nothing leaves the range of float64 on the way to a result that does not."""
        formula = self.formula
        longer = isinstance(formula, RowFormula) and formula.narrow is not None
        return longer or self.has_products or not any(not m.selects for m in monoids(formula))

    @property
    def shape_label(self) -> str:
        """The shape, and for a segment op the number of segments and the order of the ids."""
        text = "x".join(map(str, self.shape)) or "scalar"
        order = "sorted" if self.is_sorted else "random"
        return f"{text}->{self.segments} {order}" if self.is_segmented else text

    @property
    def axis_label(self) -> str:
        """The axis as text, and what else is not as usual."""
        axis = self.get("axis")
        text = "-"
        if self.op.parameter("axis"):
            text = "all" if axis is None else str(axis).replace(" ", "")
        return " ".join([text, *self._unusual()])

    def _unusual(self) -> Iterator[str]:
        for p in self.op.parameters:
            value = self.parameters.get(p.name, p.default)
            if p.name != "axis" and value is not p.default and p.default is not REQUIRED:
                yield f"{p.name}={value}"
        cutting = [o.name for o in cuts(self.op)]
        yield from (f"+{n}" for n in self.given if n not in cutting[:1])

    @property
    def is_plain(self) -> bool:
        """Whether all is as usual but the axis."""
        return not any(True for _ in self._unusual())

    @property
    def key(self) -> tuple[str, str, str, str]:
        """What tells cases apart, in a form that survives a file."""
        return self.op.name, self.element, self.shape_label, self.axis_label

    def __str__(self) -> str:
        return " ".join([*self.key, *(f"{n}={v}" for n, v in self.parameters.items())])


def monoids(formula: Formula) -> list[Monoid]:
    """Every fold of a formula."""
    if isinstance(formula, RowFormula):
        return [step.monoid for step in formula.passes if step.monoid]
    return [m for m in (formula.prefix, formula.monoid) if m]
