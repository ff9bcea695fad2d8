"""What all kernels over rows share: parameters, where a program stands, loads and stores.

Names in the generated text: ``p_x`` is the address of operand x; ``x_u``, ``x_o0`` and ``x_a0`` are
its strides over the units of a tile, an outer dimension and the axis; ``unit`` and ``lane`` are
positions in a tile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import triton.language as tl

from ..core.elements import ELEMENTS, FLOATS
from ..formulas.bind import primitives_of
from ..formulas.record import (
    Formula,
    Monoid,
    RowFormula,
    ScanFormula,
    functions_of,
    parameters,
)
from .bind import bind
from .primitives import pick
from .source import Source, compile_source

CONSTANTS = ("extent", "correction", "weight")
STORED = {name: f"tl.{ELEMENTS[name].dtype.name}" for name in FLOATS}
_WIDE = {"fp64": "tl.float64", "fp32": "tl.float32"}
COMPUTE = {name: _WIDE[ELEMENTS[name].computes_in] for name in FLOATS}


@dataclass(frozen=True)
class Shape:
    """What a kernel's text depends on besides the formula: the key of a compiled kernel."""

    element: str
    full: tuple[str, ...]
    row: tuple[str, ...]
    outputs: tuple[str, ...]  # all that the formula gives
    written: tuple[int, ...]  # positions of those that are stored
    outer: int  # number of outer dimensions
    axis: int  # number of dimensions of the axis
    across: bool
    wide: bool  # 64-bit offsets
    long: bool  # positions along the axis may exceed what float32 counts
    backwards: bool = False  # the forward direction runs towards lower indices

    @property
    def stored(self) -> tuple[str, ...]:
        """The outputs that are stored."""
        return tuple(self.outputs[w] for w in self.written)

    @property
    def operands(self) -> tuple[str, ...]:
        """All operands in the order of the parameters; ``y_before`` reads y."""
        return (*self.sources, *self.row, *self.stored)

    @property
    def sources(self) -> tuple[str, ...]:
        """Full operands that are read, without those that are others one position on."""
        return tuple(dict.fromkeys(n.removesuffix("_before") for n in self.full))


def constants_of(formula: Formula) -> tuple[str, ...]:
    """Parameters of the problem that a formula's functions ask for."""
    asked = {n for f in functions_of(formula) for n in parameters(f)}
    return tuple(n for n in CONSTANTS if n in asked)


def reads(functions: Iterable[Callable | None]) -> set[str]:
    """Names that functions ask for."""
    return {n for f in functions if f is not None for n in parameters(f)}


def monoids_of(formula: RowFormula | ScanFormula) -> list[Monoid]:
    """The monoids of a formula."""
    if isinstance(formula, RowFormula):
        return [step.monoid for step in formula.passes if step.monoid]
    return [formula.monoid, *([formula.prefix] if formula.prefix else [])]


def literal(value: float) -> str:
    """A float as source text."""
    return f'float("{value}")' if value in (float("inf"), float("-inf")) else repr(float(value))


class Frame:
    """The text of a kernel in the making."""

    def __init__(self, formula: RowFormula | ScanFormula, shape: Shape, extra: tuple[str, ...]):
        self.formula, self.shape, self.extra = formula, shape, extra
        self.source = Source()
        self.names: dict = {"tl": tl, "pick": pick}
        self.compute = COMPUTE[shape.element]
        self.axis_dim = 0 if shape.across else 1
        self.constants = constants_of(formula)
        self.index = "tl.int64" if shape.wide else "tl.int32"
        # States that hold positions of a long axis need more digits than float32 has.
        counts = shape.long and "index" in reads(m.lift for m in monoids_of(formula))
        self.kind = "tl.float64" if counts else self.compute

    # Text.

    def units(self, text: str) -> str:
        """A value per unit, spread over the tile."""
        return f"{text}[None, :]" if self.shape.across else f"{text}[:, None]"

    def lanes(self, text: str) -> str:
        """A value per position of the axis, spread over the tile."""
        return f"{text}[:, None]" if self.shape.across else f"{text}[None, :]"

    @property
    def tile(self) -> str:
        """The shape of a tile."""
        return "[B, U]" if self.shape.across else "[U, B]"

    def name(self, function: Callable) -> str:
        """The name under which the kernel finds a formula function."""
        name = function.__qualname__.replace(".", "_")
        held = self.names.setdefault(name, bind(function))
        if held is not bind(function):
            raise TypeError(f"two functions of one formula are called {name}")
        return name

    def call(self, function: Callable, held: dict[str, str], results: Sequence[str]) -> None:
        """Call a formula function on what it asks for by name."""
        missing = [n for n in parameters(function) if n not in held]
        if missing:
            raise TypeError(f"{function.__qualname__} asks for {missing}, which no operand gives")
        given = ", ".join(held[n] for n in parameters(function))
        self.source(f"{', '.join(results)} = {self.name(function)}({given})")

    # Where a program stands.

    def parameters(self) -> list[str]:
        """All parameters, those of one schedule included."""
        s, extra = self.shape, self.extra
        found = [f"p_{n}" for n in s.operands]
        found += [n for n in extra if n.startswith("p_")] + ["units", "length", "tiles"]
        found += [n for n in extra if not n.startswith("p_")]
        found += [f"n_o{d}" for d in range(s.outer)]
        found += [f"n_a{d}" for d in range(1, s.axis)]
        for n in s.operands:
            found.append(f"{n}_u")
            found += [f"{n}_o{d}" for d in range(s.outer)]
            if self.is_full(n):
                found += [f"{n}_a{d}" for d in range(s.axis)]
        found += [f'{n}: "fp64"' for n in self.constants]
        meta = ["U", "B", "IN_PLACE", *(["C"] if "p_ws" in extra else [])]
        return [*found, *(f"{n}: tl.constexpr" for n in meta)]

    def is_full(self, operand: str) -> bool:
        """Whether an operand has an element for every position of the axis."""
        s = self.shape
        finishes = isinstance(self.formula, RowFormula) and self.formula.finish is not None
        return operand in s.sources or (operand in s.outputs and not finishes)

    def begin(self) -> None:
        """Which units, which outer indices, which chunk; addresses of the units."""
        s, out = self.shape, self.source
        out(f"program = tl.program_id(0).to({self.index})")
        out(f"unit = program % tiles * U + tl.arange(0, U).to({self.index})")
        out("inside = unit < units", "rest = program // tiles", "row = unit", "rows = units")
        for d in range(s.outer):
            out(f"o{d} = rest % n_o{d}", f"rest = rest // n_o{d}")
            out(f"row += o{d} * rows", f"rows *= n_o{d}")
        for n in s.operands:
            outer = "".join(f" + o{d} * {n}_o{d}" for d in range(s.outer))
            out(f"at_{n} = p_{n}{outer} + unit * {n}_u")
        out(f"lane = tl.arange(0, B).to({self.index})")
        for n in s.row:
            out(f"row_{n} = tl.load(at_{n}, mask=inside, other=0.0).to(tl.float64)")
            out(f"tile_{n} = {self.units(f'row_{n}.to({self.compute})')}")
        for n in self.constants:
            out(f"row_{n} = tl.full([1], {n}, tl.float64)")
            out(f"tile_{n} = tl.full([1, 1], {n}, {self.compute})")

    def given(self, level: str) -> dict[str, str]:
        """What is known from the start, per row or spread over a tile."""
        return {n: f"{level}_{n}" for n in (*self.shape.row, *self.constants)}

    def places(self, axis: str) -> dict[str, str]:
        """What formulas know of positions of the axis: the index as a float, and which is first."""
        index = f"({axis}).to({'tl.float64' if self.shape.long else self.compute})"
        front = "length - 1" if self.shape.backwards else "0"
        return {"index": index, "first": f"(({axis}) == {front})"}

    def stand(self, start: str) -> None:
        """Positions of a block along the axis."""
        self.source(f"axis = {start} + lane", "valid = axis < length")
        self.source(f"here = {self.units('inside')} & {self.lanes('valid')}")

    def offset(self, operand: str, position: str) -> str:
        """Offset of positions along the axis; the text of an expression."""
        dims = self.shape.axis
        if dims == 1:
            return f"({position}) * {operand}_a0"
        parts, rest = [], f"({position})"
        for d in range(dims - 1, 0, -1):
            parts.append(f"{rest} % n_a{d} * {operand}_a{d}")
            rest = f"({rest} // n_a{d})"
        return " + ".join([f"{rest} * {operand}_a0", *parts])

    def _place(self, operand: str, position: str) -> str:
        along = self.lanes(f"({self.offset(operand, position)})")
        return f"{self.units(f'at_{operand}')} + {along}"

    def load(self, result: str, operand: str, position: str, mask: str) -> None:
        """A tile of a full operand."""
        place = self._place(operand, position)
        self.source(f"{result} = tl.load({place}, mask={mask}, other=0.0).to({self.compute})")

    def load_units(self, result: str, operand: str, position: str, mask: str) -> None:
        """One position of a full operand for every unit, in float64."""
        place = f"at_{operand} + {self.offset(operand, position)}"
        self.source(f"{result} = tl.load({place}, mask={mask}, other=0.0).to(tl.float64)")

    def store(self, operand: str, value: str) -> None:
        """A tile of an output."""
        self._store(self._place(operand, "axis"), value, "here")

    def store_units(self, operand: str, value: str) -> None:
        """One value for every unit."""
        self._store(f"at_{operand}", value, "inside")

    def _store(self, place: str, value: str, mask: str) -> None:
        kind = STORED[self.shape.element]
        if kind in ("tl.float16", "tl.bfloat16"):
            value = f"({value}).to(tl.float32)"
        else:
            value = f"({value})"
        self.source(f"tl.store({place}, {value}.to({kind}), mask={mask})")

    def settle(self) -> None:
        """All threads have read before any writes, where an output lies on an operand."""
        with self.source.block("if IN_PLACE:"):
            self.source("tl.debug_barrier()")

    # States.

    def state(self, prefix: str, monoid: Monoid) -> list[str]:
        """Variables for the state of a monoid."""
        return [f"{prefix}_{n}" for n in monoid.state]

    def lift(
        self, monoid: Monoid, held: dict[str, str], result: str, mask: str, kind: str = ""
    ) -> list[str]:
        """Lifted elements, with the identity where the mask is off."""
        state = self.state(result, monoid)
        self.call(monoid.lift, held, state)
        for name, identity in zip(state, monoid.identity, strict=True):
            # Spread first: a lift may give a plain number.
            self.source(
                f"{name} = tl.where({mask}, {name}, {literal(identity)}).to({kind or self.kind})"
            )
        return state

    def identity(self, monoid: Monoid, prefix: str, shape: str, kind: str) -> list[str]:
        """A state that holds nothing."""
        state = self.state(prefix, monoid)
        for name, identity in zip(state, monoid.identity, strict=True):
            self.source(f"{name} = tl.full({shape}, {literal(identity)}, {kind})")
        return state

    def combine(
        self, monoid: Monoid, first: Sequence[str], later: Sequence[str], to, kind=""
    ) -> None:
        """``to`` becomes the state first, then later."""
        given = ", ".join([*first, *later])
        self.source(f"{', '.join(to)} = {self.name(monoid.combine)}({given})")
        if kind:
            self.source(*(f"{t} = {t}.to({kind})" for t in to))

    def carried(self, monoid: Monoid, state: Sequence[str]) -> list[str]:
        """A carry of each unit spread over the tile, as the elements meet it.

        Carries are float64 and widen what they meet, so that a long axis loses nothing between
        blocks. Where exp is taken they are narrowed: float64 exp is an order slower.
        """
        narrow = f".to({self.kind})" if "exp" in primitives_of(monoid.combine) else ""
        return [f"{self.units(s)}{narrow}" for s in state]

    def reduce(self, monoid: Monoid, state: Sequence[str], result: str) -> list[str]:
        """The state of all lanes, one for every unit, in float64."""
        total = self.state(result, monoid)
        given = state[0] if len(state) == 1 else f"({', '.join(state)})"
        text = f"tl.reduce({given}, {self.axis_dim}, {self.name(monoid.combine)})"
        self.source(f"{', '.join(total)} = {text}")
        self.source(*(f"{t} = {t}.to(tl.float64)" for t in total))
        return total

    def scan(self, monoid: Monoid, state: Sequence[str], reverse: bool) -> None:
        """Replace lifted elements by the states up to and with them."""
        given = state[0] if len(state) == 1 else f"({', '.join(state)})"
        function = self.name(monoid.combine)
        self.source(
            f"{', '.join(state)} = tl.associative_scan({given}, {self.axis_dim}, {function}, "
            f"reverse={reverse})"
        )

    def last(self, state: Sequence[str], reverse: bool) -> list[str]:
        """The last state of a scan, one for every unit, in float64."""
        end = "0" if reverse else "B - 1"
        mask = self.lanes(f"(lane == {end})")
        return [f"pick({s}, {mask}, {self.axis_dim}).to(tl.float64)" for s in state]

    def finish(self, name: str):
        """The jitted kernel."""
        return compile_source(name, self.parameters(), self.source, self.names)
