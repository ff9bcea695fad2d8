"""What all kernels over rows share: parameters, where a program stands, loads and stores.

Names in the generated text: ``p_x`` is the address of operand x; ``x_u``, ``x_o0`` and ``x_a0`` are
its strides over the units of a tile, an outer dimension and the axis; ``unit`` and ``lane`` are
positions in a tile. ``row_x`` is a value of every unit, and ``tile_x`` one of a tile.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import triton.language as tl

from ..core.declare import Operand, Role, Type
from ..core.elements import ELEMENTS, FLOATS
from ..core.problem import Problem
from ..formulas.bind import primitives_of
from ..formulas.record import (
    Monoid,
    RowFormula,
    ScanFormula,
    is_pointwise,
    names_read,
    parameters,
    repeats,
)
from .bind import bind
from .primitives import earlier, pick
from .source import Source, compile_source

STORED = {n: f"tl.{e.dtype.name}" for n, e in ELEMENTS.items()} | {"bool": "tl.int1"}
_WIDE = {"fp64": "tl.float64", "fp32": "tl.float32"}
COMPUTE = {name: _WIDE[ELEMENTS[name].computes_in] for name in FLOATS}


@dataclass(frozen=True)
class Port:
    """An operand as a kernel meets it.

    Attributes
    ----------
    name, symbol
        What the op and what formulas call it.
    dtype
        The type it is stored in, by its name in the table of element types.
    full
        Whether it has an element for every position of the axis, or one for every row.
    odd
        Whether it lies at an address that is not a multiple of 16.
    """

    name: str
    symbol: str
    dtype: str
    full: bool
    odd: bool = False


def vectors_of(element: str, numbers: Mapping[str, int]) -> tuple[tuple[str, ...], int]:
    """Which sizes and strides a kernel should know to be whole vectors, and of how many elements.

    Triton sees for itself what is a multiple of 16, and loads vectors of a row if it knows that the
    row ends, and the next one begins, at a whole one: the longest of up to 16 bytes that divides
    all of them.
    """
    vector = math.gcd(16 // ELEMENTS[element].itemsize, *numbers.values())
    return (
        (tuple(n for n, value in numbers.items() if value % 16), vector) if vector > 1 else ((), 1)
    )


def default_dtype(operand: Operand, element: str) -> str:
    """The type of an operand where nobody says another."""
    others = {Type.BOOL: "bool", Type.INDEX: "i64", Type.STATE: "f64"}
    return others.get(operand.type, element)


@dataclass(frozen=True)
class Shape:
    """What a kernel's text depends on besides the formula: the key of a compiled kernel."""

    element: str
    inputs: tuple[Port, ...]  # those that the formula asks for
    outputs: tuple[Port, ...]  # all that the formula gives
    written: tuple[int, ...]  # positions of those that are stored
    constants: tuple[str, ...]  # parameters of the problem that the formula asks for
    outer: int = 1  # number of outer dimensions
    axis: int = 1  # number of dimensions of the axis
    across: bool = False
    wide: bool = False  # 64-bit offsets
    long: bool = False  # positions along the axis may exceed what float32 counts
    backwards: bool = False  # the forward direction runs towards lower indices
    fast: bool = False  # values of a row may be computed in float32
    in_range: bool = False  # the formula stays within the range of float32
    stays_narrow: bool = False  # a held row stays as it is stored, and is widened for every look
    in_vectors: tuple[str, ...] = ()  # sizes and strides that are passed in vectors
    vector: int = 1  # elements of such a vector

    @property
    def stored(self) -> tuple[Port, ...]:
        """The outputs that are stored."""
        return tuple(self.outputs[w] for w in self.written)

    @property
    def operands(self) -> tuple[Port, ...]:
        """All operands in the order of the parameters."""
        return (*self.inputs, *self.stored)

    @property
    def odd(self) -> tuple[Port, ...]:
        """The inputs that have a twin; see ``Frame.load``."""
        return tuple(p for p in self.inputs if p.odd)

    @property
    def full(self) -> dict[str, Port]:
        """Operands with an element for every position, by what formulas call them."""
        return {p.symbol: p for p in self.inputs if p.full}

    @property
    def row(self) -> dict[str, Port]:
        """Operands with an element for every row, by what formulas call them."""
        return {p.symbol: p for p in self.inputs if not p.full}


def shape_of(
    problem: Problem,
    given: Collection[str],
    dtypes: Mapping[str, str] | None = None,
    odd: Collection[str] = (),
) -> Shape:
    """The shape of a problem, but for its walk.

    ``given`` has the outputs that are wanted; ``dtypes`` types of operands that may have several;
    ``odd`` operands at addresses that are not multiples of 16.
    """
    formula = problem.formula
    twins = () if is_pointwise(formula) else odd

    def port(operand: Operand) -> Port:
        kind = (dtypes or {}).get(operand.name) or default_dtype(operand, problem.element)
        full = operand.role is Role.ELEMENT
        return Port(operand.name, operand.symbol, kind, full, full and operand.name in twins)

    asked = names_read(formula)
    return Shape(
        problem.element,
        tuple(port(o) for role in (Role.ELEMENT, Role.ROW) for o in problem.used(role)),
        tuple(port(o) for o in problem.writes),
        tuple(k for k, o in enumerate(problem.writes) if o.name in given),
        tuple(n for n in problem.constants if n in asked),
    )


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
        self.names: dict = {"tl": tl, "pick": pick, "earlier": earlier}
        # What is repeated until nothing moves compares sums with elements, digit by digit.
        self.compute = "tl.float64" if repeats(formula) else COMPUTE[shape.element]
        self.axis_dim = 0 if shape.across else 1
        self.index = "tl.int64" if shape.wide else "tl.int32"
        # What positions and other integers are counted in.
        self.counter = "tl.float64" if shape.long else self.compute
        # States that hold positions of a long axis need more digits than float32 has.
        counts = shape.long and "index" in reads(m.lift for m in monoids_of(formula))
        self.kind = "tl.float64" if counts else self.compute
        # What values of a row are computed in.
        self.row_kind = "tl.float64"

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
        bound = bind(function)
        for name, held in self.names.items():
            if held is bound:
                return name
        # The number tells apart functions that modules give the same name.
        name = f"f{len(self.names)}_{function.__name__}"
        self.names[name] = bound
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
        found = self.pointers()
        found += [n for n in extra if n.startswith("p_")] + ["units", "length", "tiles"]
        found += [n for n in extra if n.islower() and not n.startswith("p_")]
        found += [f"n_o{d}" for d in range(s.outer)]
        found += [f"n_a{d}" for d in range(1, s.axis)]
        for p in s.operands:
            found.append(f"{p.name}_u")
            found += [f"{p.name}_o{d}" for d in range(s.outer)]
            if p.full:
                found += [f"{p.name}_a{d}" for d in range(s.axis)]
        found += [f'{n}: "fp64"' for n in s.constants]
        meta = ["U", "B", "IN_PLACE", *(["C"] if "p_ws" in extra else [])]
        meta += [n for n in extra if n.isupper()]
        return [*found, *(f"{n}: tl.constexpr" for n in meta)]

    def pointers(self) -> list[str]:
        """Parameters for the operands, and for the twins of those that have one."""
        twins = [f"q_{p.name}" for p in self.shape.odd]
        return [*(f"p_{p.name}" for p in self.shape.operands), *twins]

    def begin(self) -> None:
        """Which units, which outer indices, which chunk; addresses of the units."""
        s, out = self.shape, self.source
        self.unpack_vectors()
        out(f"program = tl.program_id(0).to({self.index})")
        out(f"unit = program % tiles * U + tl.arange(0, U).to({self.index})")
        out("inside = unit < units", "rest = program // tiles", "row = unit", "rows = units")
        for d in range(s.outer):
            out(f"o{d} = rest % n_o{d}", f"rest = rest // n_o{d}")
            out(f"row += o{d} * rows", f"rows *= n_o{d}")
        for p in s.operands:
            outer = "".join(f" + o{d} * {p.name}_o{d}" for d in range(s.outer))
            out(f"at_{p.name} = p_{p.name}{outer} + unit * {p.name}_u")
            if p in s.odd:
                out(f"even_{p.name} = q_{p.name}{outer} + unit * {p.name}_u")
        out(f"lane = tl.arange(0, B).to({self.index})")
        for n, p in s.row.items():
            # An integer may have more digits than float32 holds.
            kind = self.row_kind if p.dtype == self.shape.element else "tl.float64"
            out(f"row_{n} = {self.loaded(p, f'at_{p.name}', 'inside', kind)}")
            out(f"tile_{n} = {self.units(self.narrowed(p, f'row_{n}'))}")
        self.name_constants()

    def unpack_vectors(self) -> None:
        """Sizes and strides that are passed in vectors, in elements."""
        for n in self.shape.in_vectors:
            self.source(f"{n} = {n} * {self.shape.vector}")

    def name_constants(self) -> None:
        """Parameters of the problem, for rows and for tiles."""
        for n in self.shape.constants:
            self.source(f"row_{n} = tl.full([1], {n}, {self.row_kind})")
            self.source(f"tile_{n} = tl.full([1, 1], {n}, {self.compute})")

    def given(self, level: str) -> dict[str, str]:
        """What is known from the start, per row or spread over a tile."""
        return {n: f"{level}_{n}" for n in (*self.shape.row, *self.shape.constants)}

    def places(self, axis: str) -> dict[str, str]:
        """What formulas know of positions of the axis: the index as a float, and which is first."""
        front = "length - 1" if self.shape.backwards else "0"
        return {"index": f"({axis}).to({self.counter})", "first": f"(({axis}) == {front})"}

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

    def place(self, port: Port, position: str, twin: bool = False) -> str:
        """Addresses of a tile of an operand or of its twin; the text of an expression."""
        along = self.lanes(f"({self.offset(port.name, position)})")
        base = f"even_{port.name}" if twin else f"at_{port.name}"
        return f"{self.units(base)} + {along}"

    def loaded(
        self, port: Port, place: str, mask: str, kind: str, twin: str = "", position: str = ""
    ) -> str:
        """What formulas get to see of an operand: a condition, or a number of some type."""
        text = f"tl.load({place}, mask={mask}, other=0)"
        if twin:
            never = f"({mask} & {self.lanes(f'({position} >= length + B)')})"
            text = f"tl.where({never}, tl.load({twin}, mask={never}, other=0), {text})"
        return f"({text} != 0)" if port.dtype == "bool" else f"{text}.to({kind})"

    def narrowed(self, port: Port, value: str) -> str:
        """A value of a row as the elements of a tile meet it."""
        return value if port.dtype == "bool" else f"{value}.to({self.type_in_tile(port)})"

    def type_in_tile(self, port: Port) -> str:
        """The type that elements of an operand are computed in; integers are counts."""
        return self.compute if ELEMENTS[port.dtype].is_float else self.counter

    def load(
        self,
        result: str,
        name: str,
        position: str,
        mask: str,
        per_unit: bool = False,
        kind: str = "",
    ):
        """A tile of a full operand or, ``per_unit``, one position for every unit, in float64.

        ``name`` is what formulas call it: with ``_before``, the operand one position earlier.
        ``kind`` is the type of the result, where it is not that of the arithmetic.

        Triton lays a tile over threads by the alignment of what is read and written, and the order
        of a sum is that of the threads. An operand at an odd address has a twin at an even one,
        which is never read: the layout is that of even addresses, and so is every bit.
        """
        full, back = self.shape.full, name.removesuffix("_before")
        if name in full:
            port = full[name]
        else:
            port, borders = full[back], dict(getattr(self.formula, "before", ()))
            position = f"({position}) + 1" if self.shape.backwards else f"({position}) - 1"
            exists = f"(({position} >= 0) & ({position} < length))"
            exists = exists if per_unit else self.lanes(exists)
            mask = f"{mask} & {exists}"
        if per_unit:
            place, kind = f"at_{port.name} + {self.offset(port.name, position)}", "tl.float64"
        else:
            place, kind = self.place(port, position), kind or self.type_in_tile(port)
        twin = self.place(port, position, twin=True) if port.odd and not per_unit else ""
        text = self.loaded(port, place, mask, kind, twin, position)
        if name not in full and borders.get(back):
            text = f"tl.where({exists}, {text}, {literal(borders[back])})"
            text = f"({text} != 0)" if port.dtype == "bool" else text
        self.source(f"{result} = {text}")

    def asked(self, wanted: Iterable[str]) -> list[str]:
        """Names of full operands, and of those one position before, among what is wanted."""
        wanted = set(wanted)
        names = [*self.shape.full, *(f"{n}_before" for n in self.shape.full)]
        return [n for n in dict.fromkeys(names) if n in wanted]

    def store(self, port: Port, value: str, position: str = "axis", mask: str = "here") -> None:
        """A tile of an output."""
        self._store(port, self.place(port, position), value, mask)

    def store_units(self, port: Port, value: str, mask: str = "inside") -> None:
        """One value for every unit."""
        self._store(port, f"at_{port.name}", value, mask)

    def _store(self, port: Port, place: str, value: str, mask: str) -> None:
        narrow = port.dtype in ("f16", "bf16")
        number = "tl.float32" if narrow else STORED[port.dtype]
        # A formula may give a plain number: the compiler folds what only spreads it.
        value = f"tl.where({mask}, {value}, {value})"
        value = f"{value}.to({number})" + (f".to({STORED[port.dtype]})" if narrow else "")
        self.source(f"tl.store({place}, {value}, mask={mask})")

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
        self.mask_state(monoid, state, mask, kind or self.kind, "[1, 1]")
        return state

    def mask_state(
        self, monoid: Monoid, state: Sequence[str], mask: str, kind: str, shape: str
    ) -> None:
        """Put the identity where the mask is off; a lift may give plain numbers."""
        for name, identity in zip(state, monoid.identity, strict=True):
            nothing = f"tl.full({shape}, {literal(identity)}, {kind})"
            self.source(f"{name} = tl.where({mask}, {name}, {nothing}).to({kind})")

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
        blocks. Where exp is taken, or numbers are scaled, they are narrowed: that is an order
        slower in float64 and takes twice the registers.
        """
        slow = {"exp", "mantissa"} & set(primitives_of(monoid.combine))
        narrow = f".to({self.kind})" if slow else ""
        return [f"{self.units(s)}{narrow}" for s in state]

    def reduce(
        self, monoid: Monoid, state: Sequence[str], result: str, kind: str = ""
    ) -> list[str]:
        """The state of all lanes, one for every unit."""
        total = self.state(result, monoid)
        given = state[0] if len(state) == 1 else f"({', '.join(state)})"
        text = f"tl.reduce({given}, {self.axis_dim}, {self.name(monoid.combine)})"
        self.source(f"{', '.join(total)} = {text}")
        self.source(*(f"{t} = {t}.to({kind or self.row_kind})" for t in total))
        return total

    def scan(self, monoid: Monoid, state: Sequence[str], reverse: bool) -> None:
        """Replace lifted elements by the states up to and with them."""
        given = state[0] if len(state) == 1 else f"({', '.join(state)})"
        function = self.name(monoid.combine)
        self.source(
            f"{', '.join(state)} = tl.associative_scan({given}, {self.axis_dim}, {function}, "
            f"reverse={reverse})"
        )

    def moved(self, result: str, value: str, edge: str, reverse: bool) -> None:
        """What the lane before each has, and ``edge`` on the first."""
        first = self.lanes(f"(lane == {'B - 1' if reverse else '0'})")
        given = f"({value}, {value}, tl.full({self.tile}, 1, tl.int32))"
        scan = f"tl.associative_scan({given}, {self.axis_dim}, earlier, reverse={reverse})"
        self.source(f"{result}, _, _ = {scan}")
        self.source(f"{result} = tl.where({first}, {edge}, {result})")

    def excluded(
        self, monoid: Monoid, state: Sequence[str], result: str, reverse: bool
    ) -> list[str]:
        """The states up to the lane before each, of those up to and with it."""
        found = self.state(result, monoid)
        for name, own, identity in zip(found, state, monoid.identity, strict=True):
            nothing = f"tl.full([1, 1], {literal(identity)}, {self.kind})"
            self.moved(name, own, nothing, reverse)
        return found

    def last(self, state: Sequence[str], reverse: bool) -> list[str]:
        """The last state of a scan, one for every unit, in float64."""
        end = "0" if reverse else "B - 1"
        mask = self.lanes(f"(lane == {end})")
        return [f"pick({s}, {mask}, {self.axis_dim}).to(tl.float64)" for s in state]

    def finish(self, name: str):
        """The jitted kernel."""
        return compile_source(name, self.parameters(), self.source, self.names)
