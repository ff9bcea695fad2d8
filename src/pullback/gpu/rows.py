"""Row formulas: passes that fold the axis, then a value for every row or for every element.

A block is folded by ``tl.reduce`` in the compute type; lanes fold ``STEPS`` blocks each before they
join; what they give is carried from there on in float64 or, with the precision "fast", sums in two
floats. Values of a row are float64 or, with "fast", the compute type where nothing leaves its range
and the row is one block or one whose record says so. Of a row too long to be held its tail may be;
the blocks before it are then read again from the last to the first, so that what was read last,
which may still be in the cache, is met first. A row that several programs share
is folded chunk by chunk into the workspace: every program of the next launch joins the chunks'
states for itself, in one order.

A pass that is taken again until it comes to rest is a loop, and all of its rows one program's: how
often it is taken only the device knows.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from ..formulas.bind import primitives_of
from ..formulas.record import Again, Monoid, Pass, RowFormula, names_read
from .frame import STORED, Frame, Shape, literal, reads
from .tiles import STEPS
from .two_floats import LOST, NOTHING, add_twofold


def folds_of(formula: RowFormula) -> list[int]:
    """The passes that fold the axis."""
    return [k for k, step in enumerate(formula.passes) if step.monoid]


@cache
def make_rows_kernel(
    name: str, formula: RowFormula, shape: Shape, extra: tuple[str, ...], phase: str, whole: bool
):
    """The kernel for all passes (``"all"``), one pass (``"fold 0"``), or what follows (``"end"``).

    ``whole`` says that the axis fits one block, which is then read once.
    """
    return Rows(formula, shape, extra, phase, whole).make(name)


class Rows(Frame):
    """The text of a kernel over rows."""

    def __init__(self, formula, shape, extra, phase: str, whole: bool):
        super().__init__(formula, shape, extra)
        self.phase, self.whole, self.reads = phase, whole, names_read(formula)
        self.tailed, self.holds_tail = "TAIL" in extra, False
        closes = [primitives_of(step.close) for step in formula.passes if step.close]
        in_range = shape.in_range
        self.scales = not in_range and any("power_of_two" in names for names in closes)
        # A square root brings back what its square would lose, unless the formula has scaled it.
        self.squares = (
            formula.finish is not None
            and "sqrt" in primitives_of(formula.finish)
            and not (self.scales or in_range)
        )
        # Every thread computes the values of its rows: of short rows that is much beside their
        # elements, and many GPUs have a sixty-fourth of their units for float64. What leaves the
        # range of float32 stays, and so do the states that chunks keep.
        self.folding = int(phase.removeprefix("fold ")) if phase.startswith("fold") else None
        short = whole and not (self.scales or self.squares)
        if shape.fast and (short or in_range) and self.folding is None:
            self.row_kind = self.kind
        self.widened: set[str] = set()

    def make(self, name: str):
        formula, out = self.formula, self.source
        self.begin()
        self.bounds()
        self.per_row, self.per_tile = self.given("row"), self.given("tile")
        self.per_tail = dict(self.per_tile)
        if self.whole:
            self.stand("first")
            self.fetch(self.reads, narrow=True)
        if self.tailed:
            out("cut = (length - TAIL + B - 1) // B * B", "stop = cut")
            out(f"tail_axis = cut + tl.arange(0, TAIL).to({self.index})")
            out(f"tail_here = {self.units('inside')} & {self.lanes('(tail_axis < length)')}")
        for k, step in enumerate(formula.passes):
            state: list[str] = []
            if step.again:
                self.repeat(step, step.again)
                continue
            if step.monoid:
                before_fold = self.folding is not None and k < self.folding
                if self.phase == "end" or before_fold:
                    state = self.joined(k, step.monoid)
                else:
                    state = self.folded(step.monoid)
                if k == self.folding:
                    self.keep(k, step.monoid, state)
                    return self.finish(name)
            self.close(step, state)
        if formula.finish:
            self.call(formula.finish, self.per_row, self.results())
            for p in self.shape.stored:
                self.store_units(p, f"result_{p.name}")
        elif self.whole:
            self.apply()
        elif self.is_one_block:
            self.stand("first")
            self.fetch(reads([formula.apply]))
            self.apply()
        else:
            if self.tailed:
                self.apply("tail_", self.per_tail)
            with out.block("for ahead in range(first, stop, B):"):
                out(f"start = {'cut - B - ahead' if self.tailed else 'ahead'}")
                self.stand("start")
                self.fetch(reads([formula.apply]))
                self.apply()
        return self.finish(name)

    @property
    def is_one_block(self) -> bool:
        """Whether a program that applies has a single block to apply to."""
        return self.phase == "end"

    def bounds(self) -> None:
        """The positions of the axis that are the program's."""
        if self.phase == "all":
            self.source("first = 0", "stop = length")
        else:
            self.source("first = rest * chunk", "stop = tl.minimum(first + chunk, length)")

    def fetch(self, wanted, at: str = "", narrow: bool = False) -> None:
        """Load full operands at the present block, and what formulas ask of its positions.

        ``at`` stands before the names of another block's positions and values, and ``narrow`` says
        that they are kept for several looks.
        """
        held, level = (self.per_tail, at) if at else (self.per_tile, "tile_")
        for n in self.asked(wanted):
            if narrow and n in self.narrow:
                stored = STORED[self.shape.element]
                self.load(f"stored_{n}", n, f"{at}axis", f"{at}here", kind=stored)
                self.source(f"{level}{n} = stored_{n}.to({self.compute})")
            else:
                self.load(f"{level}{n}", n, f"{at}axis", f"{at}here")
            held[n] = f"{level}{n}"
        for n, text in self.places(f"{at}axis").items():
            if n in self.reads:
                self.source(f"{level}{n} = {self.lanes(text)}")
                held[n] = f"{level}{n}"

    @property
    def narrow(self) -> list[str]:
        """Operands that stay as they are stored until they are looked at again."""
        if not self.shape.stays_narrow:
            return []
        return [n for n, p in self.shape.full.items() if p.dtype == self.shape.element]

    def widen_again(self, after: str) -> None:
        """Elements widened anew, ``after`` a value of the rows is known.

        A compiler would keep what it has widened already, in twice the registers. It cannot know
        that the length is not negative, and so not what the bits are.
        """
        if self.narrow:
            self.source(f"unchanged = tl.where(length < 0, {after}, 0.0).to(tl.int16)")
        for n in self.narrow:
            bits = f"stored_{n}.to(tl.int16, bitcast=True) ^ {self.units('unchanged')}"
            stored = f"({bits}).to({STORED[self.shape.element]}, bitcast=True)"
            level = "tail" if self.tailed else "tile"
            self.source(f"{level}_{n} = {stored}.to({self.compute})")

    def results(self, at: str = "") -> list[str]:
        """Variables for what the formula gives."""
        return [f"{at}result_{p.name}" for p in self.shape.outputs]

    def apply(self, at: str = "", held: dict[str, str] | None = None) -> None:
        self.call(self.formula.apply, held or self.per_tile, self.results(at))
        self.settle()
        for p in self.shape.stored:
            self.store(p, f"{at}result_{p.name}", f"{at}axis", f"{at}here")

    def folded(self, monoid: Monoid) -> list[str]:
        """The state of the program's part of the axis."""
        out = self.source
        kind = self.kind
        if self.squares and self.widened & reads([monoid.lift]):
            kind = "tl.float64"
        if self.whole:
            lifted = self.lift(monoid, self.per_tile, "lifted", "here", kind)
            return self.reduce(monoid, lifted, "total")
        # Sums in two floats or, as all else, in float64.
        sums = monoid.sums if self.shape.fast and kind == "tl.float32" else 0
        wide = kind if sums else "tl.float64"
        carry = self.identity(monoid, "carry", "[U]", wide)
        out(*(f"{name}{LOST} = tl.full([U], {NOTHING}, {wide})" for name in carry[:sums]))
        with out.block(f"for outer in range(first, stop, B * {STEPS}):"):
            part = self.identity(monoid, "part", self.tile, kind)
            with out.block(f"for start in range(outer, tl.minimum(outer + B * {STEPS}, stop), B):"):
                self.stand("start")
                self.fetch(reads([monoid.lift]))
                lifted = self.lift(monoid, self.per_tile, "lifted", "here", kind)
                self.combine(monoid, part, lifted, part, kind)
            self.carry_on(monoid, carry, self.reduce(monoid, part, "joint", wide), sums, wide)
        if self.tailed:
            # Behind the first loop, which needs registers of its own.
            if not self.holds_tail:
                self.fetch(self.reads, "tail_", narrow=True)
                self.holds_tail = True
            lifted = self.lift(monoid, self.per_tail, "tail_lifted", "tail_here", kind)
            joint = self.reduce(monoid, lifted, "tail_joint", wide)
            self.carry_on(monoid, carry, joint, sums, wide)
        if sums:
            self.settle_sums(carry, sums)
        return carry

    def carry_on(
        self, monoid: Monoid, carry: list[str], joint: list[str], sums: int, kind: str
    ) -> None:
        """Take a state into the carry, so many sums of it with what they lose."""
        if sums < len(carry):
            rest = self.state("rest", monoid)
            self.combine(monoid, carry, joint, rest, kind)
            self.source(*(f"{c} = {r}" for c, r in zip(carry[sums:], rest[sums:], strict=True)))
        for total, more in zip(carry[:sums], joint[:sums], strict=True):
            given = f"{total}, {total}{LOST}, {more}"
            self.source(f"{total}, {total}{LOST} = {self.name(add_twofold)}({given})")

    def settle_sums(self, carry: list[str], sums: int) -> None:
        """A carry with what its sums have lost."""
        self.source(*(f"{name} = {name}.to({self.row_kind})" for name in carry))
        for name in carry[:sums]:
            lost = f"{name}{LOST}"
            # Beside an infinite sum there is NaN.
            self.source(f"{name} = {name} + tl.where({lost} == {lost}, {lost}, 0.0)")

    def repeat(self, step: Pass, again: Again) -> None:
        """Take a pass until no row of the program moves."""
        out, names = self.source, step.gives
        self.call(again.start, self.per_row, [f"row_{n}" for n in names])
        for n in names:
            out(f"row_{n} = tl.where(inside, row_{n}, row_{n}).to(tl.float64)")
            self.per_row[n], self.per_tile[n] = f"row_{n}", f"tile_{n}"
        out("moving = tl.max(inside.to(tl.int32), 0)", "turns = 0")
        with out.block("while moving > 0:"):
            self.spread_over_tile(names)
            state = self.folded(step.monoid)
            held = self.per_row | dict(zip(step.monoid.state, state, strict=True))
            self.call(step.close, held, [f"next_{n}" for n in names])
            # What was NaN and is, does not move.
            moves = [
                f"((next_{n} != row_{n}) & ((next_{n} == next_{n}) | (row_{n} == row_{n})))"
                for n in again.moving
            ]
            out(f"moved = inside & ({' | '.join(moves)})", "turns += 1")
            out(f"moving = tl.where(turns < {again.most}, tl.max(moved.to(tl.int32), 0), 0)")
            out(*(f"row_{n} = next_{n}" for n in names))
        self.spread_over_tile(names)

    def spread_over_tile(self, names: Sequence[str]) -> None:
        """Values of rows as elements meet them."""
        self.source(*(f"tile_{n} = {self.spread(f'row_{n}', self.kind)}" for n in names))

    def state_place(self, k: int, component: int, chunk: str) -> str:
        """Where a component of a chunk's state lies in the workspace."""
        sizes = [len(self.formula.passes[j].monoid.state) for j in folds_of(self.formula)]
        before = sum(sizes[: folds_of(self.formula).index(k)])
        size = sizes[folds_of(self.formula).index(k)]
        return f"p_ws + ({before} * chunks + {chunk} * {size} + {component}) * rows"

    def keep(self, k: int, monoid: Monoid, state: list[str]) -> None:
        """Store the state of a chunk."""
        for c, name in enumerate(state):
            self.source(f"tl.store({self.state_place(k, c, 'rest')} + row, {name}, mask=inside)")

    def joined(self, k: int, monoid: Monoid) -> list[str]:
        """The state of all chunks, from the workspace."""
        out = self.source
        out("share = tl.arange(0, C)")
        out(f"there = {self.units('inside')} & {self.lanes('(share < chunks)')}")
        state = self.state("share", monoid)
        for c, (name, identity) in enumerate(zip(state, monoid.identity, strict=True)):
            place = self.lanes(f"({self.state_place(k, c, 'share')})")
            at = f"{place} + {self.units('row')}"
            out(f"{name} = tl.load({at}, mask=there, other={literal(identity)})")
        return self.reduce(monoid, state, "total")

    def spread(self, value: str, kind: str) -> str:
        """A value of each row, which may be a plain number, spread over the tile."""
        return self.units(f"(tl.where(inside, {value}, {value}).to({kind}))")

    def close(self, step: Pass, state: list[str]) -> None:
        """Close the state of a pass into values that what follows knows by name."""
        held = dict(self.per_row)
        if step.monoid:
            held |= dict(zip(step.monoid.state, state, strict=True))
        results = [f"row_{n}" for n in step.names]
        # Powers of two, and squares, may leave the range of float32: what meets them is widened.
        scales = self.scales and step.close and "power_of_two" in primitives_of(step.close)
        widens = self.squares or scales
        if step.close:
            self.call(step.close, held, results)
        else:
            self.source(*(f"{r} = {s}" for r, s in zip(results, state, strict=True)))
        for n, r in zip(step.names, results, strict=True):
            kind = "tl.float64" if widens else self.kind
            self.widened |= {n} if widens else set()
            self.source(f"tile_{n} = {self.spread(r, kind)}")
            self.per_row[n], self.per_tile[n] = r, f"tile_{n}"
            self.per_tail[n] = f"tile_{n}"
        if step.monoid:
            self.widen_again(results[-1])
