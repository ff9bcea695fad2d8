"""From operands to a launch: which loop nest, over which dimensions, with which kernel.

What a launch computes is fixed by the problem; how it walks memory is chosen from the strides. All
choices give the same bytes.
"""

from __future__ import annotations

import operator
import struct
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from ..core.declare import Op, Role, Type
from ..core.problem import Problem
from ..formulas.record import RowFormula, ScanFormula, is_pointwise
from ..memory.dimensions import merge
from . import pool
from .codegen.block import (
    CONSTANT_NAMES,
    CONSTANTS,
    FRONT,
    OPERANDS,
    ORIGIN,
    PARTS,
    SCRATCH,
    STRAINED,
    STREAMED,
    TURN,
)
from .codegen.lanes import LANES
from .codegen.operands import Operands
from .codegen.storage import ITEMSIZE
from .compile import Kernel, compile_kernel
from .loops.columns import WIDEST_TILE, make_columns_kernel
from .loops.flush import LINE
from .loops.rows import BLOCK, make_rows_kernel
from .loops.scan_columns import (
    WIDEST_BOTH_WAYS,
    WIDEST_ONE_WAY,
    groups_of,
    make_scan_columns_kernel,
)
from .loops.scan_parts import SCAN_BLOCK
from .loops.scan_rows import (
    make_back_parts_kernel,
    make_back_totals_kernel,
    make_prefix_totals_kernel,
    make_scan_parts_kernel,
    make_scan_rows_kernel,
    make_scan_totals_kernel,
)
from .loops.stages import make_stage_kernel

# Outputs from this size on are written past the caches. With 48 MB of last-level cache, 16 MB
# written so and then read by another kernel took two thirds of the time (4.4 ms for norm2 and a
# cumsum behind it, 3.3 ms so), 8 MB took the same, and 4 MB were slower.
STREAM_BYTES = 8 << 20
# But not where they are written in shorter runs than this. The line at the end of a run is written
# partly past the caches and partly not, which is slow: rows of 30 float32 took 58 ms instead of 15,
# rows of 100 19 instead of 10, rows of 256 7 instead of 9. Down to half of it, runs of whole lines.
STREAM_RUN = 1 << 10

# Lanes lie along folded rows from this extent on, though it is less than the lanes are: columns of
# short packed rows would be read element by element (softmax of rows of 5 took 20 ms instead of 12;
# of rows of 3 about the same).
SHORTEST_FOLD = 4

# Rows are cut over threads only where they are few and long.
MOST_CUT_ROWS = 64
LEAST_CUT_BLOCKS = 8
# The steps of a two-way scan over rows that are cut.
TWO_WAY_PARTS = {
    "prefix-totals": make_prefix_totals_kernel,
    "back-totals": make_back_totals_kernel,
    "back-parts": make_back_parts_kernel,
}


@dataclass
class Layout:
    """Dimensions after merging: the axis, the rest, and which way the lanes lie."""

    schedule: str  # "rows" or "columns", "packed", "strided" or "bent"
    outer_sizes: list[int]
    outer_strides: list[list[int]]  # per operand
    axis_sizes: list[int]
    axis_strides: list[list[int]]
    columns: int = 0
    column_strides: list[int] | None = None


def element_of(problem: Problem, operand: str, dtypes: Mapping[str, str] | None) -> str:
    """Storage type of an operand: the op's element type, its own, or what a call says."""
    declared = problem.op.operand(operand).type
    if declared is Type.ELEMENT:
        return problem.element
    return "bool" if declared is Type.BOOL else (dtypes or {}).get(operand, problem.element)


def blocks_of(problem: Problem) -> int:
    size = SCAN_BLOCK if isinstance(problem.formula, ScanFormula) else BLOCK
    return -(-problem.extent // size)


def _packed(strides: Sequence[int], items: Sequence[int]) -> int:
    """How many operands would be read element by element with lanes along these strides."""
    return sum(abs(s) != item for s, item in zip(strides, items, strict=True))


def choose_layout(
    problem: Problem,
    strides: Sequence[Sequence[int]],
    items: Sequence[int],
    lanes: Sequence[int],
) -> Layout:
    """Split dimensions into axis and rest and decide which way the lanes lie.

    ``strides`` are per operand and dimension of the problem, ``items`` the sizes of the operands'
    elements; ``lanes`` are the operands that are walked along the lanes, the others are constant
    along the axis.
    """
    shape, axes = problem.shape, problem.axes
    per_operand = [list(s) for s in strides]
    pointwise = is_pointwise(problem.formula)
    outer = [d for d in range(len(shape)) if d not in axes]
    guide = per_operand[lanes[0]] if lanes else per_operand[-1]
    outer.sort(key=lambda d: -abs(guide[d]))
    outer_sizes, outer_strides = merge(
        [shape[d] for d in outer], [[s[d] for d in outer] for s in per_operand]
    )
    axis = list(axes)
    if pointwise:  # no order to keep: walk the axis as memory lies
        axis.sort(key=lambda d: -abs(per_operand[-1][d]))
    axis_sizes, axis_strides = merge(
        [shape[d] for d in axis], [[s[d] for d in axis] for s in per_operand]
    )
    if pointwise and len(axis_sizes) > 1:  # all but the innermost are independent rows
        outer_sizes = outer_sizes + axis_sizes[:-1]
        outer_strides = [o + a[:-1] for o, a in zip(outer_strides, axis_strides, strict=True)]
        axis_sizes, axis_strides = axis_sizes[-1:], [a[-1:] for a in axis_strides]
    if not axis_sizes:
        axis_sizes, axis_strides = [1], [[item] for item in items]
    if len(axis_sizes) > 1:
        return Layout("bent rows", outer_sizes, outer_strides, axis_sizes, axis_strides)
    # In elements: 1 where neighbours are neighbours in memory, -1 where they descend.
    along = [axis_strides[o][0] / items[o] for o in lanes]
    one_way = along.count(along[0]) == len(along) and abs(along[0]) == 1
    packed = one_way and (along[0] > 0 or isinstance(problem.formula, ScanFormula))
    rows = Layout(
        "packed rows" if packed else "strided rows",
        outer_sizes,
        outer_strides,
        axis_sizes,
        axis_strides,
    )
    if not outer_sizes:
        return rows
    sizes = [items[o] for o in lanes]
    along_axis = _packed([axis_strides[o][0] for o in lanes], sizes)
    candidates = [
        (_packed([outer_strides[o][d] for o in lanes], sizes), -size, d)
        for d, size in enumerate(outer_sizes)
    ]
    across, negative_size, d = min(candidates)
    extent, width = axis_sizes[0], -negative_size
    folds = isinstance(problem.formula, RowFormula) and not pointwise
    shortest = SHORTEST_FOLD if folds else LANES
    if width < LANES or (extent >= shortest and along_axis <= across):
        return rows
    steps = [s[d] for s in outer_strides]
    return Layout(
        "packed columns" if all(map(operator.eq, steps, items)) else "strided columns",
        outer_sizes[:d] + outer_sizes[d + 1 :],
        [s[:d] + s[d + 1 :] for s in outer_strides],
        axis_sizes,
        axis_strides,
        width,
        steps,
    )


def _alignment_to_stream(run_bytes: int) -> int:
    """What a run must be aligned to for writing it past the caches; 0 if it should not be."""
    if run_bytes >= STREAM_RUN:
        return 1
    return LINE if run_bytes >= STREAM_RUN // 2 and run_bytes % LINE == 0 else 0


def _along(problem: Problem, operand: str, strides: tuple[int, ...]) -> tuple[int, ...]:
    """Strides over the problem's shape: an operand with one element a row stays put on the axes."""
    if problem.op.operand(operand).role is Role.ELEMENT:
        return strides
    return tuple(0 if d in problem.axes else s for d, s in enumerate(strides))


@dataclass(frozen=True)
class KernelKey:
    """Everything a kernel is compiled for."""

    op: Op
    selection: tuple[Any, ...]
    element: str
    schedule: str
    full: tuple[str, ...]
    row: tuple[str, ...]
    written: tuple[int, ...]
    types: tuple[tuple[str, str], ...]  # of operands that do not have the element type

    @property
    def formula(self) -> RowFormula | ScanFormula:
        return self.op.record(self.selection, self.element)

    @property
    def ends(self) -> tuple[str, ...]:
        """Outputs that a scan writes at the end of a row."""
        if isinstance(self.formula, RowFormula):
            return ()
        return tuple(o.name for o in self.op.writes if o.role is Role.ROW)


@cache
def kernel_for(key: KernelKey, role: str) -> Kernel:
    """The compiled kernel of an op as a whole, plain, or for a part of rows cut over threads."""
    formula, element, schedule = key.formula, key.element, key.schedule
    bent, packed = schedule.startswith("bent"), schedule.startswith("packed")

    def make():
        operands = Operands(
            element,
            key.full,
            key.row,
            key.op.outputs,
            key.written,
            bent=bent,
            packed=packed,
            flipped=schedule == "packed flipped rows",
            types=dict(key.types),
            ends=key.ends,
        )
        if isinstance(formula, RowFormula):
            if role.startswith("stage"):
                return make_stage_kernel(formula, element, operands, int(role[5:]))
            if schedule.endswith("columns"):
                return make_columns_kernel(formula, element, operands)
            return make_rows_kernel(formula, element, operands)
        if role == "totals":
            return make_scan_totals_kernel(formula, element, operands)
        if role == "parts":
            return make_scan_parts_kernel(formula, element, operands)
        plain = role.startswith("plain")
        for part, make_part in TWO_WAY_PARTS.items():
            if role.endswith(part):
                return make_part(formula, element, operands, plain)
        if schedule.endswith("columns"):
            return make_scan_columns_kernel(formula, element, operands, plain)
        return make_scan_rows_kernel(formula, element, operands, plain)

    outputs = "".join(key.op.outputs[w] for w in key.written)
    # Operands by name: a kernel is compiled for their number and order.
    operands = f"{'_'.join(key.full)}.{'_'.join(key.row)}.{outputs}".replace(".", "_of_")
    operands += "".join(f"_{name}_{kind}" for name, kind in key.types)
    chosen = "-".join(str(value) for value in key.selection) or "any"
    words = (key.op.name, chosen, element, schedule.replace(" ", "-"), operands, role)
    return compile_kernel("-".join(words), formula, make)


class Phase:
    """A kernel run over its units, after the phase before it.

    Attributes
    ----------
    units
        How many units there are.
    only_if_strained
        Skip it unless an earlier phase has set ``STRAINED``.
    """

    __slots__ = ("_kernel", "_key", "_role", "only_if_strained", "units")

    def __init__(self, key: KernelKey, role: str, units: int, only_if_strained: bool = False):
        self._key, self._role, self.units = key, role, units
        self.only_if_strained = only_if_strained
        self._kernel: Kernel | None = None

    @property
    def kernel(self) -> Kernel:
        """The kernel, compiled when it is first wanted."""
        if self._kernel is None:
            self._kernel = kernel_for(self._key, self._role)
        return self._kernel


def run_phases(
    phases: Sequence[Phase], block: array, traffic: int, threads: int, owners: Any
) -> None:
    """Run phases on a filled parameter block; ``owners`` keep what it points to alive."""
    p, held = block.buffer_info()[0], (block, owners)
    for phase in phases:
        if phase.only_if_strained and not block[STRAINED]:
            continue
        pool.run(phase.kernel.address, p, phase.units, traffic, threads, held)


def has_plain_form(problem: Problem) -> bool:
    """Whether a two-way scan of scaled products may first be tried without scaling."""
    formula = problem.formula
    return isinstance(formula, ScanFormula) and formula.scaled is not None


def _bits(value: float) -> int:
    return struct.unpack("<q", struct.pack("<d", value))[0]


def workspace_bound(problem: Problem) -> int:
    """Workspace that suffices whatever the strides: tiles may double the rows by rounding up."""
    n = problem.extent
    rows = int(np.prod(problem.shape, dtype=np.int64)) // n if n else 0
    return Launch._scratch(problem, 2 * rows, blocks_of(problem), down_columns=True)


class Launch:
    """A problem on one set of strides, ready to run on any addresses."""

    def __init__(
        self,
        problem: Problem,
        strides: dict[str, tuple[int, ...]],
        threads: int,
        dtypes: Mapping[str, str] | None = None,
    ):
        op, formula = problem.op, problem.formula
        full, row = problem.symbols()
        written = tuple(k for k, n in enumerate(op.outputs) if n in strides)
        called = {o.symbol: o.name for o in op.reads}
        inputs = [called[n.removesuffix("_before")] for n in (*full, *row)]
        self.sources = (*inputs, *(op.outputs[w] for w in written))
        table = [_along(problem, n, strides[n]) for n in self.sources]
        stored = {n: element_of(problem, n, dtypes) for n in self.sources}
        items = [ITEMSIZE[stored[n]] for n in self.sources]
        types = tuple(
            (op.operand(n).symbol, kind) for n, kind in stored.items() if kind != problem.element
        )
        lanes = [k for k, n in enumerate(self.sources) if op.operand(n).role is Role.ELEMENT]
        layout = choose_layout(problem, table, items, lanes)
        self._offsets = [0] * len(table)
        origin, turn = 0, 1
        if isinstance(formula, ScanFormula):
            # Backwards along the axis: start at the far end with the stride turned round.
            alone_against = formula.against and formula.prefix is None
            if problem.reverse != alone_against:
                origin, turn = problem.extent - 1, -1
                for o, s in enumerate(layout.axis_strides):
                    self._offsets[o] = (layout.axis_sizes[0] - 1) * s[0]
                    s[0] = -s[0]
            if layout.schedule == "packed rows" and layout.axis_strides[0][0] < 0:
                layout.schedule = "packed flipped rows"
        self.schedule = layout.schedule
        units = int(np.prod(layout.outer_sizes, dtype=np.int64)) if layout.outer_sizes else 1
        blocks = blocks_of(problem)
        tile = tiles = 0
        if layout.columns:
            tile = self._tile(formula, layout.columns, units, threads)
            tiles = -(-layout.columns // tile)
        rows = units * max(1, tiles * tile)
        self.workspace = self._scratch(problem, rows, blocks, down_columns=bool(layout.columns))
        head = [0] * (OPERANDS + 2 * len(table))
        head[0:3] = [units, layout.axis_sizes[0], blocks]
        if layout.schedule.startswith("bent"):
            head[1] = problem.extent
        head[4:6] = [len(layout.outer_sizes), len(layout.axis_sizes)]
        head[6] = len(head)
        head[7] = head[6] + len(layout.outer_sizes) * (1 + len(table))
        head[8:11] = [layout.columns, tile, tiles]
        held = problem.constants
        constants = [held.get(name, 0.0) for name in CONSTANT_NAMES]
        head[CONSTANTS : CONSTANTS + 3] = [_bits(v) for v in constants]
        head[FRONT] = _bits(float(problem.extent - 1 if problem.reverse else 0))
        head[ORIGIN], head[TURN] = origin, turn
        if layout.column_strides:
            head[OPERANDS + 1 :: 2] = layout.column_strides
        body = head + layout.outer_sizes + [v for s in layout.outer_strides for v in s]
        body += layout.axis_sizes + [v for s in layout.axis_strides for v in s]
        self.template = array("q", body)
        if layout.columns:
            units *= tiles
        elif is_pointwise(formula):
            blocks = -(-layout.axis_sizes[0] // BLOCK)
            self.template[2] = blocks
            units *= blocks
        self.units = units
        numel = int(np.prod(problem.shape, dtype=np.int64))
        self.traffic = numel * ITEMSIZE[problem.element] * (len(full) + len(written))
        self.key = KernelKey(
            op, problem.selection, problem.element, layout.schedule, full, row, written, types
        )
        written_bytes = numel * ITEMSIZE[problem.element] * len(written)
        run_bytes = (tile or layout.axis_sizes[0]) * ITEMSIZE[problem.element]
        if written_bytes >= STREAM_BYTES:
            self.template[STREAMED] = _alignment_to_stream(run_bytes)
        self.phases = [Phase(self.key, "whole", units)]
        # In place, a second attempt would find its inputs overwritten.
        self.phases_in_place = self.phases
        if has_plain_form(problem):
            self.phases = [
                Phase(self.key, "plain", units),
                Phase(self.key, "whole", units, only_if_strained=True),
            ]
        if self._worth_cutting(problem, layout, threads):
            self._cut(formula, threads)

    def _worth_cutting(self, problem: Problem, layout: Layout, threads: int) -> bool:
        """Whether threads should share rows: few rows, that do not even out, of many blocks."""
        rows, blocks = int(self.template[0]), blocks_of(problem)
        return (
            threads > 1
            and rows < 2 * threads
            and rows % threads != 0
            and rows <= MOST_CUT_ROWS
            and blocks >= LEAST_CUT_BLOCKS
            and self.traffic >= 2 * pool.SERIAL_BYTES
            and not layout.columns
            and not is_pointwise(problem.formula)
        )

    def _cut(self, formula: RowFormula | ScanFormula, threads: int) -> None:
        rows, blocks = int(self.template[0]), int(self.template[2])
        self.template[PARTS] = threads
        if isinstance(formula, ScanFormula) and formula.prefix:
            plain = any(phase.only_if_strained for phase in self.phases)
            self.phases_in_place = self._two_way_parts("whole", threads)
            self.phases = self.phases_in_place
            if plain:
                again = self._two_way_parts("whole", threads, only_if_strained=True)
                self.phases = self._two_way_parts("plain", threads) + again
            return
        if isinstance(formula, ScanFormula):
            counted = min(blocks, (threads - 1) * -(-blocks // threads))
            self.phases = [
                Phase(self.key, "totals", rows * counted),
                Phase(self.key, "parts", rows * threads),
            ]
        else:
            last = rows if formula.finish else rows * blocks
            self.phases = [
                Phase(self.key, f"stage{k}", rows * blocks)
                for k, step in enumerate(formula.passes)
                if step.monoid
            ]
            self.phases.append(Phase(self.key, f"stage{len(formula.passes)}", last))
        self.phases_in_place = self.phases

    def _two_way_parts(self, form: str, threads: int, only_if_strained=False) -> list[Phase]:
        rows, blocks = int(self.template[0]), int(self.template[2])
        units = (rows * blocks, rows * threads, rows * threads)
        return [
            Phase(self.key, f"{form}-{part}", count, only_if_strained)
            for part, count in zip(TWO_WAY_PARTS, units, strict=True)
        ]

    @staticmethod
    def _tile(formula: RowFormula | ScanFormula, columns: int, units: int, threads: int) -> int:
        """Columns per tile: wide, but enough tiles that every thread has some."""
        widest = WIDEST_TILE
        if isinstance(formula, ScanFormula):
            widest = WIDEST_BOTH_WAYS if formula.prefix else WIDEST_ONE_WAY
        share = -(-columns * units // (2 * threads))
        tile = min(widest, max(64, share), columns)
        return -(-tile // LANES) * LANES

    @staticmethod
    def _scratch(problem: Problem, rows: int, blocks: int, down_columns: bool) -> int:
        """Bytes of workspace: a state for each block of a row, of the folds that need one."""
        formula = problem.formula
        if blocks < 2:
            return 0
        cut = rows <= 2 * MOST_CUT_ROWS and blocks >= LEAST_CUT_BLOCKS
        if isinstance(formula, ScanFormula) and formula.prefix:
            carries = len(formula.prefix.state)
            behind = carries + len(formula.monoid.state) if cut else 0
            groups = groups_of(problem.extent) if down_columns else 0
            return rows * (blocks * (carries + behind) + groups * carries) * 8
        if not cut:
            return 0
        monoids = [formula.monoid] if isinstance(formula, ScanFormula) else _monoids(formula)
        return rows * blocks * sum(len(m.state) for m in monoids) * 8

    def run(self, addresses: dict[str, int], workspace: int, threads: int, owners: Any) -> None:
        """Run on operands at these addresses, which ``owners`` keep alive."""
        block = self.template[:]
        block[SCRATCH] = workspace
        for o, name in enumerate(self.sources):
            block[OPERANDS + 2 * o] = addresses[name] + self._offsets[o]
        phases = self.phases
        if phases is not self.phases_in_place and self._is_in_place(addresses):
            phases = self.phases_in_place
        run_phases(phases, block, self.traffic, threads, owners)

    def operand_words(self) -> list[tuple[int, str, int]]:
        """Words of the parameter block that hold addresses: whose, and how far from its start."""
        return [
            (OPERANDS + 2 * o, name, offset)
            for o, (name, offset) in enumerate(zip(self.sources, self._offsets, strict=True))
        ]

    def run_block(self, block: array, threads: int, owners: Any) -> None:
        """Run on a filled parameter block, of operands that are apart."""
        run_phases(self.phases, block, self.traffic, threads, owners)

    def _is_in_place(self, addresses: dict[str, int]) -> bool:
        targets = {addresses[n] for n in self.key.op.outputs if n in addresses}
        return any(a in targets for n, a in addresses.items() if n not in self.key.op.outputs)


def _monoids(formula: RowFormula):
    return [step.monoid for step in formula.passes if step.monoid]
