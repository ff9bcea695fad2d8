"""Scan formulas: ``tl.associative_scan`` inside a block, carries between blocks in float64.

A scan has a direction in memory. Every operand is read at its own positions, in whole vectors: what
lies one position aside is moved over from the thread that has it. An exclusive scan is an inclusive
one whose states are moved by one. A block reads nothing beyond itself, where another block's output
may already lie on the operand, but the one element that a formula asks for as ``NAME_before``.

What a formula starts from is the first carry; what it ends with is made of the last one.

A formula with a prefix scans that first, forwards, and keeps the carry into every block in the
workspace; the scan itself then runs over the blocks from the end. Where several programs share a
row, each folds its chunk into the workspace first, and then starts from the chunks before its own.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from ..formulas.record import Monoid, ScanFormula
from .frame import Frame, Shape, literal, reads


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
            lifted = self.lift(monoid, self.fetch([monoid.lift], "start"), "total", "here")
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

    def fetch(self, functions: list[Callable], start: str) -> dict[str, str]:
        """Load what formula functions read of a block."""
        held, wanted = self.given("tile"), reads(functions)
        asked = self.asked(wanted)
        aside = [n for n in asked if n not in self.shape.full]
        own = [n.removesuffix("_before") for n in asked]
        for n in dict.fromkeys(own):
            self.load(f"own_{n}", n, "axis", "here")
        for n in aside:
            self.move_over(n, start)
        held |= {n: f"own_{n}" for n in (*own, *aside)}
        for n, text in self.places("axis").items():
            if n in wanted:
                self.source(f"own_{n} = {self.lanes(f'({text})')}")
                held[n] = f"own_{n}"
        return held

    def move_over(self, name: str, start: str) -> None:
        """An operand one position earlier in forward order; what a block lacks of it is loaded."""
        back = name.removesuffix("_before")
        port, out = self.shape.full[back], self.source
        holds = "tl.int32" if port.dtype == "bool" else self.type_in_tile(port)
        border = f"tl.full([1, 1], {literal(dict(self.formula.before).get(back, 0.0))}, {holds})"
        edge = border
        if not self.whole:
            out(f"edge = tl.full([U], {start} {'- 1' if self.forwards else '+ B'}, {self.index})")
            out("edge_inside = inside & (edge >= 0) & (edge < length)")
            self.load(f"edge_{back}", back, "edge", "edge_inside", per_unit=True)
            edge = self.units(f"edge_{back}.to({holds})")
        self.moved(f"own_{name}", f"own_{back}.to({holds})", edge, not self.forwards)
        beyond = self.lanes(f"(axis == {'0' if self.forwards else 'length - 1'})")
        out(f"own_{name} = tl.where({beyond}, {border}, own_{name})")
        if port.dtype == "bool":
            out(f"own_{name} = own_{name} != 0")

    def block(self, start: str, carry: list[str], before: list[str]) -> None:
        """Scan a block, write its outputs, and take it into the carry."""
        formula, shape = self.formula, self.shape
        monoid, prefix = formula.monoid, formula.prefix
        self.stand(start)
        functions = [monoid.lift, *([prefix.lift] if prefix else [])]
        functions += [formula.finish] if self.phase != "fold" else []
        held = self.fetch(functions, start)
        if prefix:
            here = self.lift(prefix, held, "here", "here")
            self.scan(prefix, here, not self.forwards)
            prior = self.excluded(prefix, here, "prior", not self.forwards)
            if before:
                self.combine(prefix, self.carried(prefix, before), prior, prior)
            held |= dict(zip(prefix.state, prior, strict=True))
        state = self.lift(monoid, held, "state", "here")
        self.scan(monoid, state, not self.ascends)
        # The only block of a row is asked for its state by the formula alone.
        goes_on = carry and not (self.whole and formula.end is None)
        total = self.state("total", monoid)
        if goes_on:
            # Before anything is written over the block's operands.
            for name, text in zip(total, self.last(state, not self.ascends), strict=True):
                self.source(f"{name} = {text}")
        if self.phase != "fold":
            if not formula.inclusive:
                state = self.excluded(monoid, state, "past", not self.ascends)
            if carry:
                self.combine(monoid, self.carried(monoid, carry), state, state)
            held |= dict(zip(monoid.state, state, strict=True))
            full = [p for p in shape.outputs if p.full]
            self.call(formula.finish, held, [f"result_{p.name}" for p in full])
            self.settle()
            for p in shape.stored:
                if p.full:
                    self.store(p, f"result_{p.name}")
        if goes_on:
            self.combine(monoid, carry, total, carry, "tl.float64")


class _Loop:
    """A loop that begins with a line of its own."""

    def __init__(self, block, begin):
        self._block, self._begin = block, begin

    def __enter__(self):
        self._block.__enter__()
        self._begin()

    def __exit__(self, *error):
        return self._block.__exit__(*error)
