"""From operands to kernels: which walk, which tiles, which launches, on what workspace."""

from __future__ import annotations

from collections.abc import Mapping

from ..core.declare import Role
from ..core.problem import Problem
from ..formulas.record import RowFormula, ScanFormula, is_pointwise
from ..memory.view import DTYPES
from .frame import Shape, constants_of
from .layout import choose_walk
from .rows import folds_of, make_rows_kernel
from .scans import make_scan_kernel
from .steps import Step
from .tiles import FEW, MOST_CHUNKS, MOST_PARTIALS, Tile, ceil_to_power, choose_tile

# float32 counts to here.
_COUNTS = 2**24


def _is_full(problem: Problem, operand: str) -> bool:
    """Whether an operand has an element for every position of the axis."""
    return problem.op.operand(operand).role is Role.ELEMENT


def work_of(formula) -> str:
    """What kind of work a formula is, for the choice of tiles."""
    if isinstance(formula, ScanFormula):
        return "both ways" if formula.prefix else "scan"
    return "pointwise" if is_pointwise(formula) else "fold"


def _states(formula) -> tuple[int, int]:
    """Components of the states kept per chunk, and per block."""
    if isinstance(formula, ScanFormula):
        prefix = len(formula.prefix.state) if formula.prefix else 0
        return len(formula.monoid.state) + prefix, prefix
    return sum(len(formula.passes[k].monoid.state) for k in folds_of(formula)), 0


def _workspace(formula, tile: Tile, length: int, rows: int) -> int:
    per_chunk, per_block = _states(formula)
    if tile.is_whole(length) or not (tile.is_split or per_block):
        return 0
    blocks = -(-length // tile.block)
    return 8 * rows * (tile.chunks * per_chunk + blocks * per_block)


def workspace_bound(problem: Problem) -> int:
    """Workspace that suffices whatever the strides."""
    formula, n = problem.formula, problem.extent
    work = work_of(formula)
    if work == "pointwise" or not n or not problem.numel:
        return 0
    item = DTYPES[problem.element].itemsize
    rows = problem.numel // n
    per_chunk, per_block = _states(formula)
    bound = 0
    for across in (False, True):
        # Dimensions that do not merge leave tiles part empty: more programs than rows ask for, and
        # so never more chunks than with the rows all side by side.
        tile = choose_tile(work, item, n, rows, 1, across)
        most = min(MOST_CHUNKS, MOST_PARTIALS // tile.units) if rows < FEW * tile.units else 1
        chunks = max(tile.chunks, most) if not tile.is_whole(n) else 1
        blocks = -(-n // tile.block)
        bound = max(bound, 8 * rows * (chunks * per_chunk + blocks * per_block))
    return bound


class Launch:
    """A problem on one set of strides, ready to run on any memory."""

    def __init__(self, problem: Problem, strides: Mapping[str, tuple[int, ...]], in_place: bool):
        op, formula = problem.op, problem.formula
        item = DTYPES[problem.element].itemsize
        full, row = problem.symbols()
        written = tuple(k for k, n in enumerate(op.outputs) if n in strides)
        work = work_of(formula)
        shape = Shape(problem.element, full, row, op.outputs, written, 0, 1, False, False, False)
        self.operands = shape.operands
        table = [self._along(problem, n, strides[n], item) for n in self.operands]
        lanes = [o for o, n in enumerate(self.operands) if _is_full(problem, n)]
        walk = choose_walk(problem.shape, problem.axes, table, lanes, work == "pointwise")
        outer = 1
        for n in walk.outer:
            outer *= n
        tile = choose_tile(work, item, walk.length, walk.units, outer, walk.across)
        self.walk, self.tile = walk, tile
        self.shape = Shape(
            problem.element,
            full,
            row,
            op.outputs,
            written,
            len(walk.outer),
            len(walk.axis),
            walk.across,
            walk.wide,
            isinstance(formula, RowFormula) and walk.length > _COUNTS,
            isinstance(formula, ScanFormula) and problem.reverse,
        )
        self.workspace = _workspace(formula, tile, walk.length, walk.rows)
        self._problem, self._outer, self._in_place = problem, outer, in_place
        self.steps = self._scan_steps() if isinstance(formula, ScanFormula) else self._row_steps()

    @staticmethod
    def _along(problem: Problem, operand: str, strides, item: int) -> tuple[int, ...]:
        """Strides in elements; an operand with one element a row stays put along the axes."""
        stays = problem.axes if not _is_full(problem, operand) else ()
        return tuple(0 if d in stays else s // item for d, s in enumerate(strides))

    def _row_steps(self) -> list[Step]:
        formula, tile, walk = self._problem.formula, self.tile, self.walk
        whole = tile.is_whole(walk.length)
        if is_pointwise(formula):
            return [self._step("end", tile.chunks, False)]
        if not tile.is_split:
            return [self._step("all", 1, whole)]
        steps = [self._step(f"fold {k}", tile.chunks, False) for k in folds_of(formula)]
        blocks = 1 if formula.finish else -(-walk.length // tile.block)
        return [*steps, self._step("end", blocks, False, tile.block)]

    def _scan_steps(self) -> list[Step]:
        formula, tile = self._problem.formula, self.tile
        if not tile.is_split:
            return [self._step("all", 1, tile.is_whole(self.walk.length))]
        phases = ["prefix", "fold", "end"] if formula.prefix else ["fold", "end"]
        return [self._step(phase, tile.chunks, False) for phase in phases]

    def _step(self, phase: str, parts: int, whole: bool, chunk: int = 0) -> Step:
        problem, walk, tile = self._problem, self.walk, self.tile
        formula = problem.formula
        tiles = -(-walk.units // tile.units)
        scan = isinstance(formula, ScanFormula)
        make = make_scan_kernel if scan else make_rows_kernel
        name = "_".join((problem.op.name, *map(str, problem.selection), *phase.split()))
        keeps = self.workspace > 0
        walks = not whole if scan else phase != "all"
        extra = (("p_ws",) if keeps else ()) + (("chunk", "chunks") if walks else ())
        kernel = make(name, formula, self.shape, extra, phase, whole)
        numbers: list[int | float] = [walk.units, walk.length, tiles]
        meta = {"U": tile.units, "B": tile.block, "IN_PLACE": self._in_place}
        if walks:
            numbers += [chunk or tile.chunk, tile.chunks]
        if keeps:
            meta["C"] = ceil_to_power(tile.chunks)
        numbers += [*walk.outer, *walk.axis[1:]]
        for o, n in enumerate(self.operands):
            numbers += [walk.unit_strides[o], *walk.outer_strides[o]]
            if _is_full(problem, n):
                numbers += walk.axis_strides[o]
        held = problem.constants
        numbers += [held[n] for n in constants_of(formula)]
        pointers = (*self.operands, *(("workspace",) if keeps else ()))
        programs = tiles * self._outer * parts
        return Step(kernel, programs, pointers, tuple(numbers), meta, tile.warps, scan)
