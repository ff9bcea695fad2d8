"""Row formulas on rows that ids or offsets cut: a row of the formula is a segment.

Tiles have rows of the table down and columns across. ``line`` is a row of the table, ``axis`` a
place within a segment. Segments up to a chunk are a program's each. Of longer ones every chunk has
a program, which keeps its state in the workspace for those of the next launch to join; the chunks
of a segment count from its own start, so its bits depend on its length alone.

Which segment a chunk belongs to is read off the ids. In every stretch of ``chunk`` sorted rows at
most one segment longer than that begins, and it holds the last row of the stretch. At most one has
a later chunk that begins there, and it holds the first row. So a stretch has two slots.
"""

from __future__ import annotations

from functools import cache

from ..formulas.record import Monoid, RowFormula
from .frame import Port, Shape, literal
from .rows import Rows, folds_of


@cache
def make_runs_kernel(name: str, formula: RowFormula, shape: Shape, phase: str, order: str):
    """The kernel of a phase.

    ``"all"`` does the short segments; of the long ones ``"fold 0"`` and so on fold a pass, and
    ``"end"`` does the rest. ``order`` is ``"sorted"``, ``"unsorted"`` or ``"offsets"``.
    """
    return _Runs(formula, shape, phase, order).make(name)


@cache
def make_each_kernel(name: str, formula: RowFormula, shape: Shape):
    """The kernel of a formula that needs nothing of a segment but its own values."""
    return _Each(formula, shape).make(name)


class _Table(Rows):
    """What kernels on the rows of a table share."""

    def strides(self) -> list[str]:
        """Parameters that say where operands lie, then those of the problem."""
        steps = [f"{p.name}_{d}" for p in self.shape.operands for d in ("r", "u")]
        numbers = [f'{n}: "fp64"' for n in self.shape.constants if n != "extent"]
        return [*steps, *numbers, *(f"{n}: tl.constexpr" for n in ("U", "B", "IN_PLACE"))]

    def place(self, port: Port, position: str, twin: bool = False) -> str:
        line = self.lanes(f"({self.line(position)} * {port.name}_r)")
        base = f"q_{port.name}" if twin else f"p_{port.name}"
        return f"{base} + {line} + {self.units(f'(unit * {port.name}_u)')}"

    def line(self, position: str) -> str:
        """Rows of the table at places of a segment."""
        raise NotImplementedError


class _Runs(_Table):
    is_one_block = False

    def __init__(self, formula: RowFormula, shape: Shape, phase: str, order: str):
        super().__init__(formula, shape, (), phase, False)
        self.order = order

    def parameters(self) -> list[str]:
        found = [*self.pointers(), "p_starts", "p_ends"]
        found += ["p_order"] if self.order == "unsorted" else []
        found += ["p_ws", "p_keys"] if self.phase != "all" else []
        found += ["units", "lines", "segments", "tiles", "chunk", "start_stride"]
        found += ["key_stride", "halvings"] if self.phase != "all" else []
        return [*found, *self.strides()]

    def begin(self) -> None:
        s, out = self.shape, self.source
        self.unpack_vectors()
        out("program = tl.program_id(0).to(tl.int64)")
        out("unit = program % tiles * U + tl.arange(0, U)", "slot = program // tiles")
        if self.phase == "all":
            out("segment = slot")
        else:
            self.find_segment()
        for name, place in (("head", "p_starts"), ("tail", "p_ends")):
            out(f"{name} = tl.load({place} + segment * start_stride).to(tl.int64)")
            # Offsets may lead anywhere.
            out(f"{name} = tl.minimum(tl.maximum({name}, 0), lines)")
        out("count = tl.maximum(tail - head, 0)")
        if self.phase == "all":
            out("works = count <= chunk", "part = slot * 0")
        else:
            out("part = tl.where(later, stretch - head // chunk, 0)")
            out("works = known & (count > chunk) & (part * chunk < count)")
            out("works = works & (later | (head // chunk == stretch)) & ((part > 0) == later)")
            if self.formula.finish and self.phase == "end":
                out("works = works & (part == 0)")
        # By way of numbers: the interpreter does not spread a scalar condition.
        out("inside = unit < tl.where(works, units, 0)", "length = tl.where(works, count, 0)")
        out("lane = tl.arange(0, B).to(tl.int64)")
        for p in s.operands:
            if not p.full:
                out(f"at_{p.name} = p_{p.name} + segment * {p.name}_r + unit * {p.name}_u")
        for n, p in s.row.items():
            out(f"row_{n} = {self.loaded(p, f'at_{p.name}', 'inside', 'tl.float64')}")
            out(f"tile_{n} = {self.units(self.narrowed(p, f'row_{n}'))}")
        if "extent" in s.constants:
            out("extent = count.to(tl.float64)")
        self.name_constants()

    def find_segment(self) -> None:
        """The segment whose chunk lies in the program's slot, if there is one."""
        out = self.source
        out("stretch = slot // 2", "later = slot % 2 == 1")
        out("position = stretch * chunk + tl.where(later, 0, chunk - 1)")
        if self.order == "offsets":
            out("segment = slot * 0", "high = segment + segments")
            with out.block("for _ in range(halvings):"):
                out("middle = (segment + high) // 2", "is_open = segment < high")
                out("at = p_ends + middle * start_stride")
                out("ends = tl.load(at, mask=is_open, other=0).to(tl.int64) <= position")
                out("segment = tl.where(is_open & ends, middle + 1, segment)")
                out("high = tl.where(is_open & (ends == 0), middle, high)")
            out("known = (segment < segments) & (position < lines)")
        else:
            out("at = p_keys + position * key_stride")
            out("segment = tl.load(at, mask=position < lines, other=-1).to(tl.int64)")
            out("known = (segment >= 0) & (segment < segments)")
        out("segment = tl.where(known, segment, 0)")

    def bounds(self) -> None:
        self.source("first = part * chunk", "stop = tl.minimum(first + chunk, length)")

    def line(self, position: str) -> str:
        if self.order != "unsorted":
            return f"(head + ({position}))"
        if position == "axis":
            return "line"
        there = f"(({position}) >= 0) & (({position}) < length)"
        return f"tl.load(p_order + head + ({position}), mask={there}, other=0)"

    def stand(self, start: str) -> None:
        super().stand(start)
        if self.order == "unsorted":
            self.source("line = tl.load(p_order + head + axis, mask=valid, other=0)")

    def state_place(self, k: int, component: int, chunk: str) -> str:
        sizes = [len(self.formula.passes[j].monoid.state) for j in folds_of(self.formula)]
        which = folds_of(self.formula).index(k)
        slots = "(2 * (lines // chunk + 1))"
        at = f"({sum(sizes[:which]) + component} * {slots} + {chunk})"
        return f"p_ws + {at} * units"

    def keep(self, k: int, monoid: Monoid, state: list[str]) -> None:
        for c, name in enumerate(state):
            self.source(f"tl.store({self.state_place(k, c, 'slot')} + unit, {name}, mask=inside)")

    def joined(self, k: int, monoid: Monoid) -> list[str]:
        out = self.source
        carry = self.identity(monoid, "carry", self.tile, "tl.float64")
        share = self.state("share", monoid)
        with out.block("for outer in range(0, (length + chunk - 1) // chunk, B):"):
            out("share = outer + lane", "there = share * chunk < length")
            out("there = there[:, None] & inside[None, :]")
            out("held = 2 * (head // chunk + share) + tl.where(share > 0, 1, 0)")
            for c, (name, identity) in enumerate(zip(share, monoid.identity, strict=True)):
                at = f"({self.state_place(k, c, 'held')})[:, None] + unit[None, :]"
                out(f"{name} = tl.load({at}, mask=there, other={literal(identity)})")
            self.combine(monoid, carry, share, carry, "tl.float64")
        return self.reduce(monoid, carry, "total")


class _Each(_Table):
    """Rows of the table one by one, each with the values of its segment."""

    def __init__(self, formula: RowFormula, shape: Shape):
        super().__init__(formula, shape, (), "all", False)

    def parameters(self) -> list[str]:
        found = self.pointers()
        found += ["p_ids", "units", "lines", "segments", "tiles", "id_stride"]
        return [*found, *self.strides()]

    def line(self, position: str) -> str:
        return position

    def spread(self, value: str, kind: str) -> str:
        return f"tl.where(here, {value}, {value}).to({kind})"

    def make(self, name: str):
        s, out = self.shape, self.source
        self.unpack_vectors()
        out("program = tl.program_id(0).to(tl.int64)")
        out("unit = program % tiles * U + tl.arange(0, U)", "inside = unit < units")
        out("lane = tl.arange(0, B).to(tl.int64)", "length = lines")
        self.stand("program // tiles * B")
        out("segment = tl.load(p_ids + axis * id_stride, mask=valid, other=-1).to(tl.int64)")
        out("known = (segment >= 0) & (segment < segments)")
        out(f"there = here & {self.lanes('known')}")
        for n, p in s.row.items():
            # Only what closes a pass wants float64, of which many GPUs do little.
            kind = "tl.float64" if self.formula.passes else self.type_in_tile(p)
            place = f"p_{p.name} + {self.lanes(f'(segment * {p.name}_r)')}"
            place += f" + {self.units(f'(unit * {p.name}_u)')}"
            out(f"row_{n} = {self.loaded(p, place, 'there', kind)}")
            out(f"tile_{n} = {self.narrowed(p, f'row_{n}')}")
        for n in s.constants:
            out(f"row_{n} = tl.full([1, 1], {n}, tl.float64)")
            out(f"tile_{n} = row_{n}.to({self.compute})")
        self.per_row, self.per_tile = self.given("row"), self.given("tile")
        self.fetch(self.reads)
        for step in self.formula.passes:
            self.close(step, [])
        self.call(self.formula.apply, self.per_tile, self.results())
        self.settle()
        for p in s.stored:
            nothing = "False" if p.dtype == "bool" else "0"
            self.store(p, f"tl.where(there, result_{p.name}, {nothing})")
        return self.finish(name)
