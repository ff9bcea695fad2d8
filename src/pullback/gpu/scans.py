"""Scan formulas: ``tl.associative_scan`` inside a block, carries between blocks in float64.

A scan has a direction in memory. An exclusive scan of a block is an inclusive one of the elements
before each, read one position aside; it never reads beyond its block, where another block's output
may already lie on the operand. The part of a block's last element joins the carry by itself.

What a formula starts from is the first carry; what it ends with is made of the last one.

A formula with a prefix scans that first, forwards, and keeps the carry into every block in the
workspace; the scan itself then runs over the blocks from the end. Where several programs share a
row, each folds its chunk into the workspace first, and then starts from the chunks before its own.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from ..formulas.record import Monoid, ScanFormula, parameters
from .frame import Frame, Shape, literal


@cache
def make_scan_kernel(
    name: str, formula: ScanFormula, shape: Shape, extra: tuple[str, ...], phase: str, whole: bool
):
    """The kernel of a phase: ``"all"``, or for shared rows ``"prefix"``, ``"fold"`` and ``"end"``.

    ``whole`` says that the axis fits one block.
    """
    return _Scan(formula, shape, extra, phase, whole).make(name)


class _Scan(Frame):
    def __init__(self, formula, shape, extra, phase: str, whole: bool):
        super().__init__(formula, shape, extra)
        if formula.prefix and not formula.against:
            raise TypeError("a scan with a prefix runs against it")
        self.phase, self.whole, self.pipelines = phase, whole, "STAGES" in extra
        # Directions in memory: towards higher indices or not.
        self.forwards = not shape.backwards
        self.ascends = self.forwards != formula.against

    def make(self, name: str):
        formula, out = self.formula, self.source
        self.begin()
        if self.whole:
            # Nothing is carried into the only block but what the formula starts from.
            carry = before = []
            if formula.start or formula.end:
                carry = self.front(formula.monoid, "carry", formula.start)
            if formula.prefix and (formula.prefix_start or carry):
                before = self.front(formula.prefix, "before", formula.prefix_start)
            self.block("0", carry, before)
            self.behind(carry)
            return self.finish(name)
        out("first = rest * chunk", "stop = tl.minimum(first + chunk, length)")
        out("count = (stop - first + B - 1) // B")
        if formula.prefix and self.phase != "end":
            carry = self.start("prefix", "before", self.forwards, 0, self.phase == "fold")
            self.prefix_carries(carry)
            if self.phase == "prefix":
                self.keep(formula.prefix, carry, 0)
                return self.finish(name)
            # The carries that some threads have stored are read by all.
            out("tl.debug_barrier()")
        main = len(formula.prefix.state) if formula.prefix else 0
        carry = self.start("monoid", "carry", self.ascends, main, self.phase == "end")
        with self.blocks(self.ascends):
            before = self.block_carry() if formula.prefix else []
            self.block("start", carry, before)
        if self.phase == "fold":
            self.keep(formula.monoid, carry, main)
        else:
            self.behind(carry)
        return self.finish(name)

    # The workspace: per chunk the states of prefix and scan, then per block those of the prefix.

    def chunk_place(self, component: int, chunk: str) -> str:
        formula = self.formula
        size = len(formula.monoid.state) + (len(formula.prefix.state) if formula.prefix else 0)
        return f"p_ws + ({chunk} * {size} + {component}) * rows"

    def block_place(self, component: int) -> str:
        formula = self.formula
        prefix = len(formula.prefix.state)
        size = len(formula.monoid.state) + prefix
        at = f"chunks * {size} + start // B * {prefix} + {component}"
        return f"p_ws + ({at}) * rows + row"

    def keep(self, monoid: Monoid, state: list[str], offset: int) -> None:
        for c, name in enumerate(state):
            at = self.chunk_place(offset + c, "rest")
            self.source(f"tl.store({at} + row, {name}, mask=inside)")

    def front(self, monoid: Monoid, prefix: str, function: Callable | None) -> list[str]:
        """The state in front of a row."""
        if function is None:
            return self.identity(monoid, prefix, "[U]", "tl.float64")
        state = self.state(prefix, monoid)
        self.call(function, self.given("row"), state)
        self.mask_state(monoid, state, "inside", "tl.float64", "[1]")
        return state

    def behind(self, carry: list[str]) -> None:
        """Store what the formula makes of the state behind a row, which the last chunk has."""
        formula = self.formula
        if not formula.end:
            return
        held = self.given("row") | dict(zip(formula.monoid.state, carry, strict=True))
        ports = [p for p in self.shape.outputs if not p.full]
        self.call(formula.end, held, [f"result_{p.name}" for p in ports])
        mask = "inside"
        if self.phase == "end":
            # By way of numbers: the interpreter does not spread a scalar condition.
            last = "chunks - 1" if self.ascends else "0"
            mask = f"(unit < tl.where(rest == {last}, units, 0))"
        self.settle()
        for p in self.shape.stored:
            if not p.full:
                self.store_units(p, f"result_{p.name}", mask)

    def start(self, which: str, prefix: str, ascends: bool, offset: int, joins: bool):
        """The carry into a chunk: what stands in front of the row and what earlier chunks hold."""
        monoid: Monoid = getattr(self.formula, which)
        from_operands = self.formula.start if which == "monoid" else self.formula.prefix_start
        begins = from_operands if joins or self.phase == "all" else None
        carry = self.front(monoid, prefix, begins)
        if not joins:
            return carry
        out = self.source
        share = self.state("share", monoid)
        if self.shape.across:
            # Few chunks of many columns: one after the other.
            count = "rest" if ascends else "chunks - 1 - rest"
            with out.block(f"for c in range({count}):"):
                chunk = "c" if ascends else "(chunks - 1 - c)"
                for c, name in enumerate(share):
                    at = self.chunk_place(offset + c, chunk)
                    out(f"{name} = tl.load({at} + row, mask=inside, other=0.0)")
                self.combine(monoid, carry, share, carry, "tl.float64")
            return carry
        out("share = tl.arange(0, C)", f"sooner = share {'<' if ascends else '>'} rest")
        out("there = inside[:, None] & (sooner & (share < chunks))[None, :]")
        for c, (name, identity) in enumerate(zip(share, monoid.identity, strict=True)):
            place = f"({self.chunk_place(offset + c, 'share')})[None, :]"
            out(f"{name} = tl.load({place} + row[:, None], mask=there, other={literal(identity)})")
        self.scan(monoid, share, not ascends)
        end = f"(share == {'C - 1' if ascends else '0'})[None, :]"
        joined = self.state("joined", monoid) if begins else carry
        for name, part in zip(joined, share, strict=True):
            out(f"{name} = pick({part}, {end}, 1)")
        if begins:
            self.combine(monoid, carry, joined, carry, "tl.float64")
        return carry

    def blocks(self, ascends: bool):
        """A loop over the blocks of a chunk."""
        at = "b" if ascends else "(count - 1 - b)"
        # Blocks ahead are asked for while this one is scanned.
        steps = "tl.range(count, num_stages=STAGES)" if self.pipelines else "range(count)"
        loop = self.source.block(f"for b in {steps}:")
        return _Loop(loop, lambda: self.source(f"start = first + {at} * B"))

    def prefix_carries(self, carry: list[str]) -> None:
        """Scan the prefix over the chunk and keep the carry into every block."""
        monoid = self.formula.prefix
        with self.blocks(self.forwards):
            if self.phase != "prefix":
                for c, name in enumerate(carry):
                    self.source(f"tl.store({self.block_place(c)}, {name}, mask=inside)")
            self.stand("start")
            held = self.operands_at(monoid.lift, "axis", "here", "own")
            lifted = self.lift(monoid, held, "total", "here")
            self.scan(monoid, lifted, not self.forwards)
            total = self.last(lifted, not self.forwards)
            self.combine(monoid, carry, total, carry, "tl.float64")

    def block_carry(self) -> list[str]:
        """The prefix's carry into the present block."""
        before = self.state("before", self.formula.prefix)
        for c, name in enumerate(before):
            self.source(f"{name} = tl.load({self.block_place(c)}, mask=inside, other=0.0)")
        return before

    # One block.

    def operands_at(self, function, position: str, mask: str, tag: str, per_unit=False):
        """Load what a formula function reads, at positions that may lie aside of the block's."""
        held = self.given("row" if per_unit else "tile")
        wanted = parameters(function)
        for n in self.asked(wanted):
            self.load(f"{tag}_{n}", n, position, mask, per_unit)
            held[n] = f"{tag}_{n}"
        for n, text in self.places(position).items():
            if n in wanted:
                self.source(f"{tag}_{n} = {text if per_unit else self.lanes(f'({text})')}")
                held[n] = f"{tag}_{n}"
        return held

    def aside(self, ascends: bool, name: str) -> tuple[str, str]:
        """Positions before those of the block in a scan's order, and which lie in the block."""
        self.source(f"{name} = axis {'-' if ascends else '+'} 1")
        edge = "lane > 0" if ascends else "lane < B - 1"
        self.source(f"{name}_there = ({edge}) & ({name} < length)")
        self.source(f"{name}_here = {self.units('inside')} & {self.lanes(f'{name}_there')}")
        return name, f"{name}_here"

    def block(self, start: str, carry: list[str], before: list[str]) -> None:
        """Scan a block, write its outputs, and take it into the carry."""
        formula, shape = self.formula, self.shape
        monoid, prefix = formula.monoid, formula.prefix
        self.stand(start)
        known: dict[str, str] = {}
        known_aside: dict[str, str] = {}
        if prefix:
            own = self.operands_at(prefix.lift, "axis", "here", "own")
            here = self.lift(prefix, own, "here", "here")
            self.scan(prefix, here, not self.forwards)
            prior = self.excluded(prefix, here, "prior", not self.forwards)
            for states in (prior, here):
                if before:
                    self.combine(prefix, self.carried(prefix, before), states, states)
            known = dict(zip(prefix.state, prior, strict=True))
            # What comes before the next position is what comes before this one and itself.
            known_aside = dict(zip(prefix.state, here, strict=True))
        if formula.inclusive:
            position, mask = "axis", "here"
        else:
            position, mask = self.aside(self.ascends, "past")
        tag = "own" if formula.inclusive else "past"
        held = self.operands_at(monoid.lift, position, mask, tag)
        held |= known if formula.inclusive else known_aside
        state = self.lift(monoid, held, "state", mask)
        self.scan(monoid, state, not self.ascends)
        # The only block of a row is asked for its state by the formula alone.
        goes_on = carry and not (self.whole and formula.end is None)
        if goes_on:
            self.note_total(start, state, before)
        if self.phase != "fold":
            if carry:
                self.combine(monoid, self.carried(monoid, carry), state, state)
            held = self.operands_at(formula.finish, "axis", "here", "own")
            held |= known | dict(zip(monoid.state, state, strict=True))
            full = [p for p in shape.outputs if p.full]
            self.call(formula.finish, held, [f"result_{p.name}" for p in full])
            self.settle()
            for p in shape.stored:
                if p.full:
                    self.store(p, f"result_{p.name}")
        if goes_on:
            total = self.state("total", monoid)
            self.combine(monoid, carry, total, carry, "tl.float64")

    def note_total(self, start: str, state: list[str], before: list[str]) -> None:
        """The state of a whole block, before anything is written over its operands."""
        formula = self.formula
        monoid = formula.monoid
        total = self.state("total", monoid)
        for name, text in zip(total, self.last(state, not self.ascends), strict=True):
            self.source(f"{name} = {text}")
        if formula.inclusive:
            return
        # An exclusive scan lacks the last element; of a formula with a prefix it is the first in
        # forward order, so what comes before it is the prefix's carry into the block.
        end = f"{start} + {'B - 1' if self.ascends else '0'}"
        self.source(f"edge = tl.full([U], {end}, {self.index})")
        self.source("edge_inside = inside & (edge < length)")
        held = self.operands_at(monoid.lift, "edge", "edge_inside", "edge", per_unit=True)
        if formula.prefix:
            held |= dict(zip(formula.prefix.state, before, strict=True))
        last = self.state("edge", monoid)
        self.call(monoid.lift, held, last)
        self.mask_state(monoid, last, "edge_inside", "tl.float64", "[1]")
        self.combine(monoid, total, last, total, "tl.float64")


class _Loop:
    """A loop that begins with a line of its own."""

    def __init__(self, block, begin):
        self._block, self._begin = block, begin

    def __enter__(self):
        self._block.__enter__()
        self._begin()

    def __exit__(self, *error):
        return self._block.__exit__(*error)
