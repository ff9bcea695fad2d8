"""From operands to kernels: which walk, which tiles, which launches, on what workspace."""

from __future__ import annotations

import math
import struct
from collections.abc import Collection, Mapping
from dataclasses import replace

from ..core.declare import Role
from ..core.problem import Problem
from ..errors import UnsupportedError
from ..formulas.bind import primitives_of
from ..formulas.record import (
    RowFormula,
    ScanFormula,
    in_singles,
    is_pointwise,
    names_read,
    parameters,
    repeats,
)
from ..memory.view import DTYPES
from .frame import Port, Shape, shape_of, vectors_of
from .layout import Walk, choose_walk
from .rows import folds_of, make_rows_kernel
from .scans import make_scan_kernel
from .steps import Step, pointers_of
from .tiles import ALONE, MOST_WARPS, Room, Tile, ceil_to_power, choose_stages, choose_tile

# float32 counts to here.
_COUNTS = 2**24


def work_of(formula) -> str:
    """What kind of work a formula is, for the choice of tiles."""
    if isinstance(formula, ScanFormula):
        return "both ways" if formula.prefix else "scan"
    return "pointwise" if is_pointwise(formula) else "fold"


def record_for(problem: Problem, whole: bool):
    """The record that a launch computes of rows that are one block, or not.

    Of a row that is read again, one that reads it less; of float32 where that is to be fast, one
    that stays within its range.
    """
    formula = problem.formula
    if is_fast(problem):
        formula = in_singles(formula, problem.element) or formula
    if isinstance(formula, RowFormula) and formula.online and not whole:
        return formula.online
    return formula


def is_fast(problem: Problem) -> bool:
    """Whether values of rows may be computed in float32, which must hold what they are made of."""
    asked, held = names_read(problem.formula), problem.constants
    exact = all(_is_held(value) for n, value in held.items() if n in asked)
    return problem.precision == "fast" and problem.element != "f64" and exact


def _states(formula) -> tuple[int, int]:
    """Components of the states kept per chunk, and per block."""
    if isinstance(formula, ScanFormula):
        prefix = len(formula.prefix.state) if formula.prefix else 0
        return len(formula.monoid.state) + prefix, prefix
    return sum(len(formula.passes[k].monoid.state) for k in folds_of(formula)), 0


def _workspace(problem: Problem, tile: Tile, length: int, rows: int) -> int:
    formula = record_for(problem, tile.is_whole(length))
    per_chunk, per_block = _states(formula)
    if tile.is_whole(length) or not (tile.is_split or per_block):
        return 0
    blocks = -(-length // tile.block)
    return 8 * rows * (tile.chunks * per_chunk + blocks * per_block)


def _held(problem: Problem) -> tuple[int, int]:
    """Operands that a fold looks at more than once, of a row that is held and of a longer one."""
    formula = problem.formula
    # Beside the sums of a pass that repeats, in float64, there are no registers for a row.
    if not isinstance(formula, RowFormula) or repeats(formula):
        return 0, 0
    operands = len(problem.used(Role.ELEMENT))
    # Beside two operands that stay narrow there are no registers for an exp, which counts as two.
    exps = formula.apply is not None and "exp" in primitives_of(formula.apply)
    operands *= 2 if _item(problem) == 2 and operands > 1 and exps else 1
    # States of several numbers take as much again or, where half floats are widened, more.
    states = _largest_state(formula)
    if operands > 1 and states > 1:
        operands *= 4 if _item(problem) == 2 else 2

    def looks(record: RowFormula) -> int:
        return len(folds_of(record)) + (record.apply is not None)

    tailed = operands if looks(record_for(problem, False)) > 1 else 0
    # Three sums beside a row spill, and a record that reads it once needs none of it.
    held = operands if looks(formula) > 1 and (tailed or states == 1) else 0
    return held, tailed


def _largest_state(formula: RowFormula) -> int:
    """Numbers in the largest state of a fold."""
    return max((len(formula.passes[k].monoid.state) for k in folds_of(formula)), default=0)


def _item(problem: Problem) -> int:
    """Bytes of an element as it is computed with or, where that is a float32, stored."""
    return 8 if repeats(problem.formula) else DTYPES[problem.element].itemsize


def workspace_bound(problem: Problem, room: Room) -> int:
    """Workspace that suffices whatever the strides."""
    formula, n = problem.formula, problem.extent
    work = work_of(formula)
    if work == "pointwise" or repeats(formula) or not n or not problem.numel:
        return 0
    item, rows, held = _item(problem), problem.numel // n, _held(problem)
    # A tile spans dimensions that lie as one in memory: any of them may.
    spanned = {1}
    for d, size in enumerate(problem.shape):
        if d not in problem.axes:
            spanned |= {size * units for units in spanned}
    tiles = (
        choose_tile(work, item, n, units, rows // units, across, *held, room)
        for units in spanned
        for across in (False, True)
    )
    return max(_workspace(problem, tile, n, rows) for tile in tiles)


class Launch:
    """A problem on one set of strides, ready to run on any memory."""

    def __init__(
        self,
        problem: Problem,
        strides: Mapping[str, tuple[int, ...]],
        in_place: bool,
        dtypes: Mapping[str, str] | None = None,
        odd: Collection[str] = (),
        room: Room = ALONE,
    ):
        formula = problem.formula
        bare = shape_of(problem, strides, dtypes, odd)
        self.operands = bare.operands
        work = work_of(formula)
        table = [_along(problem, p, strides[p.name]) for p in self.operands]
        lanes = [o for o, p in enumerate(self.operands) if p.full]
        walk = choose_walk(problem.shape, problem.axes, table, lanes, work == "pointwise")
        outer = math.prod(walk.outer)
        item = _item(problem)
        size = (walk.length, walk.units, outer)
        tile = choose_tile(work, item, *size, walk.across, *_held(problem), room)
        if repeats(formula) or (in_place and _meets_other_chunks(formula)):
            tile = replace(tile, chunk=tile.chunk * tile.chunks, chunks=1)
        self.walk, self.tile = walk, tile
        self.formula = record_for(problem, tile.is_whole(walk.length))
        self.shape = replace(
            bare,
            fast=is_fast(problem),
            in_range=is_fast(problem) and in_singles(formula, problem.element) is not None,
            stays_narrow=item == 2 and tile.warps > MOST_WARPS,
            outer=len(walk.outer),
            axis=len(walk.axis),
            across=walk.across,
            wide=walk.wide,
            long="index" in names_read(formula) and walk.length > _COUNTS,
            backwards=isinstance(formula, ScanFormula) and problem.reverse,
        )
        names, vector = _in_vectors(walk, self.shape)
        self.shape = replace(self.shape, in_vectors=names, vector=vector)
        self.workspace = _workspace(problem, tile, walk.length, walk.rows)
        self._problem, self._outer, self._in_place = problem, outer, in_place
        self.steps = self._scan_steps() if isinstance(formula, ScanFormula) else self._row_steps()

    def _number(self, name: str, value: int) -> int:
        """A size or stride as it is passed."""
        return value // self.shape.vector if name in self.shape.in_vectors else value

    def _row_steps(self) -> list[Step]:
        formula, tile, walk = self.formula, self.tile, self.walk
        whole = tile.is_whole(walk.length)
        if is_pointwise(formula):
            return [self._step("end", tile.chunks, False)]
        if not tile.is_split:
            return [self._step("all", 1, whole)]
        steps = [self._step(f"fold {k}", tile.chunks, False) for k in folds_of(formula)]
        blocks = 1 if formula.finish else -(-walk.length // tile.block)
        return [*steps, self._step("end", blocks, False, tile.block)]

    def _scan_steps(self) -> list[Step]:
        formula, tile = self.formula, self.tile
        if not tile.is_split:
            return [self._step("all", 1, tile.is_whole(self.walk.length))]
        phases = ["prefix", "fold", "end"] if formula.prefix else ["fold", "end"]
        return [self._step(phase, tile.chunks, False) for phase in phases]

    def _step(self, phase: str, parts: int, whole: bool, chunk: int = 0) -> Step:
        problem, walk, tile, formula = self._problem, self.walk, self.tile, self.formula
        tiles = -(-walk.units // tile.units)
        scan = isinstance(formula, ScanFormula)
        make = make_scan_kernel if scan else make_rows_kernel
        name = "_".join((problem.op.name, *map(str, problem.selection), *phase.split()))
        keeps = self.workspace > 0
        walks = not whole if scan else phase != "all"
        extra = (("p_ws",) if keeps else ()) + (("chunk", "chunks") if walks else ())
        programs = tiles * self._outer * parts
        stages = self._stages(programs) if scan and walks else 0
        extra += ("STAGES",) if stages else ()
        extra += ("TAIL",) if tile.tail else ()
        kernel = make(name, formula, self.shape, extra, phase, whole)
        numbers: list[int | float] = [self._number("units", walk.units)]
        numbers += [self._number("length", walk.length), tiles]
        meta = {"U": tile.units, "B": tile.block, "IN_PLACE": self._in_place}
        if tile.tail:
            meta["TAIL"] = tile.tail
        if walks:
            numbers += [chunk or tile.chunk, tile.chunks]
        if keeps:
            meta["C"] = ceil_to_power(tile.chunks)
        numbers += [*walk.outer, *walk.axis[1:]]
        numbers += [self._number(n, value) for n, value in _strides(walk, self.operands)]
        held = problem.constants
        numbers += [held[n] for n in self.shape.constants]
        pointers = pointers_of(self.shape)
        pointers += (("workspace", "f64"),) if keeps else ()
        return Step(
            kernel,
            programs,
            pointers,
            tuple(numbers),
            meta,
            tile.warps,
            scan or repeats(formula) or (problem.element == "f64" and _largest_state(formula) > 3),
            stages,
            tile.cores,
        )

    def _stages(self, programs: int) -> int:
        """Blocks under way in the loop of a scan; 0 where nothing is read ahead.

        At an odd address the copies change how tiles lie, and are made an element at a time, which
        takes longer than to wait for it.
        """
        if self.shape.odd:
            return 0
        read = sum(DTYPES[p.dtype].itemsize for p in self.shape.inputs if p.full)
        return choose_stages(self.tile.units * self.tile.block * read, programs)


def _is_held(value: float) -> bool:
    """Whether float32 holds a parameter: to the digit, if it is a whole number."""
    return not float(value).is_integer() or struct.unpack("f", struct.pack("f", value))[0] == value


def _strides(walk: Walk, operands: tuple[Port, ...]) -> list[tuple[str, int]]:
    """Strides by the names that kernels have for them, in the order of the parameters."""
    found = []
    for o, p in enumerate(operands):
        found.append((f"{p.name}_u", walk.unit_strides[o]))
        found += [(f"{p.name}_o{d}", s) for d, s in enumerate(walk.outer_strides[o])]
        if p.full:
            found += [(f"{p.name}_a{d}", s) for d, s in enumerate(walk.axis_strides[o])]
    return found


def _in_vectors(walk: Walk, shape: Shape) -> tuple[tuple[str, ...], int]:
    """Sizes and strides that are passed in vectors, and how long those are."""
    lanes = {"units": walk.units} if walk.across else {"length": walk.length}
    strides = _strides(walk, shape.operands)
    full = [n for p in shape.operands if p.full for n in (f"{p.name}_u", f"{p.name}_a0")]
    if not any(s == 1 and n in full for n, s in strides):
        return (), 1
    return vectors_of(shape.element, lanes | {n: s for n, s in strides if s not in (0, 1)})


def _along(problem: Problem, port: Port, strides: tuple[int, ...]) -> tuple[int, ...]:
    """Strides in elements; an operand with one element a row stays put along the axes."""
    item = DTYPES[port.dtype].itemsize
    stays = () if port.full else problem.axes
    return tuple(0 if d in stays else s // item for d, s in enumerate(strides))


def _meets_other_chunks(formula) -> bool:
    """Whether a program reads where that of another chunk writes, if an output lies on an operand.

    Raises for rows: their programs have no order.
    """
    before = [n for n in names_read(formula) if n.endswith("_before")]
    if isinstance(formula, RowFormula):
        if before:
            raise UnsupportedError(f"{before[0]}: rows that ask for it cannot be computed in place")
        return False
    return formula.end is not None or any(n in before for n in parameters(formula.finish))
