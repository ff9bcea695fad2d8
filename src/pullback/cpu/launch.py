"""From operands to a launch: which loop nest, over which dimensions, with which kernel.

What a launch computes is fixed by the problem; how it walks memory is chosen from the strides. All
choices give the same bytes.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence
from functools import cache, partial
from typing import Any

import numpy as np

from ..core.declare import Role, Type
from ..core.problem import Problem
from ..formulas.bind import primitives_of
from ..formulas.record import (
    Monoid,
    RowFormula,
    ScanFormula,
    functions_of,
    is_pointwise,
    parameters,
    reads_neighbours,
    reads_once,
    repeats,
)
from . import machine
from .codegen.bounded import uses_bounds
from .codegen.single_calls import uses_singles
from .data import constant_words, numbered
from .kernels import KernelKey, Part, Step, kernel_for
from .layout import Walk, choose_layout
from .loader import is_amd
from .pool import CHUNKS_PER_THREAD
from .program import WORKSPACE, Patch, Phase, Program
from .words import (
    BLOCK,
    CONSTANTS,
    FAR,
    FRONT,
    ITEMSIZE,
    KEPT,
    LANES,
    LINE,
    MOVING,
    OPERANDS,
    ORIGIN,
    PARTS,
    SCAN_BLOCK,
    SCRATCH,
    STRAINED,
    STREAMED,
    TURN,
    WIDEST_BOTH_WAYS,
    WIDEST_NEAR,
    WIDEST_ONE_WAY,
    WIDEST_TILE,
    groups_of,
)

# Outputs are not written past the caches in shorter runs than this. The line at the end of a run
# is written partly past the caches and partly not, which is slow: rows of 30 float32 took 58 ms
# instead of 15, rows of 100 19 instead of 10, rows of 256 7 instead of 9. Down to half of it, runs
# of whole lines.
STREAM_RUN = 1 << 10

# What a formula that calls one of these takes for a byte, in multiples of what moving it takes: a
# softmax of 64x1024 float32 takes 53 microseconds in a core's cache, a sum of twice as much 16.
HEAVY, HEAVY_WEIGHT = {"exp", "log", "mantissa", "exponent"}, 4

# Rows are cut over threads only where they are few and long.
MOST_CUT_ROWS = 64
LEAST_CUT_BLOCKS = 8


def element_of(problem: Problem, operand: str, dtypes: Mapping[str, str] | None) -> str:
    """Storage type of an operand: the op's element type, its own, or what a call says."""
    declared = problem.op.operand(operand).type
    if declared is Type.ELEMENT:
        return problem.element
    return "bool" if declared is Type.BOOL else (dtypes or {}).get(operand, problem.element)


def blocks_of(problem: Problem) -> int:
    size = SCAN_BLOCK if isinstance(problem.formula_in_doubles, ScanFormula) else BLOCK
    return -(-problem.extent // size)


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


def has_plain_form(problem: Problem) -> bool:
    """Whether a two-way scan of scaled products may first be tried without scaling."""
    formula = problem.formula_in_doubles
    return isinstance(formula, ScanFormula) and formula.scaled is not None


def computes_in_singles(
    problem: Problem,
    full: tuple[str, ...],
    row: tuple[str, ...],
    types: tuple[tuple[str, str], ...],
) -> bool:
    """Whether float32 lanes compute some of it: of elements of at most 32 bits, not in a scan."""
    formula = _formula_in_singles(problem, full, row, types)
    return formula is not None and uses_singles(formula, full, row)


def is_tried_in_singles(
    problem: Problem,
    full: tuple[str, ...],
    row: tuple[str, ...],
    types: tuple[tuple[str, str], ...],
) -> bool:
    """Whether float32 lanes are tried first where float64 lanes compute it, for the same bits."""
    formula = _formula_in_singles(problem, full, row, types)
    return formula is not None and uses_bounds(formula, full, row, problem.element)


def _formula_in_singles(
    problem: Problem,
    full: tuple[str, ...],
    row: tuple[str, ...],
    types: tuple[tuple[str, str], ...],
) -> RowFormula | None:
    """The formula that float32 lanes may compute, if they may."""
    record = problem.formula_in_doubles
    if problem.precision != "fast" or problem.element == "f64":
        return None
    if not isinstance(record, RowFormula) or problem.is_segmented:
        return None
    by_elements = _read_by_elements(record)
    if any(kind != "bool" and name in by_elements for name, kind in types):
        return None
    formula = numbered(record, problem.op.data, (*full, *row))
    assert isinstance(formula, RowFormula)
    return formula


def _read_by_elements(formula: RowFormula) -> set[str]:
    """What a row formula reads element by element, not for a whole row."""
    lifts = (step.monoid.lift for step in formula.passes if step.monoid)
    return {n for f in (*lifts, formula.apply) if f for n in parameters(f)}


@cache
def is_heavy(formula: RowFormula | ScanFormula) -> bool:
    """Whether computing takes far longer than moving what is computed."""
    return any(primitives_of(f) & HEAVY for f in functions_of(formula, stretches=False))


def _bits(value: float) -> int:
    return struct.unpack("<q", struct.pack("<d", value))[0]


def workspace_bound(problem: Problem) -> int:
    """Workspace that suffices whatever the strides: tiles may double the rows by rounding up."""
    n = problem.extent
    rows = int(np.prod(problem.shape, dtype=np.int64)) // n if n else 0
    blocks = blocks_of(problem)
    may_be_cut = rows <= MOST_CUT_ROWS and blocks >= LEAST_CUT_BLOCKS
    return _scratch(problem, 2 * rows, blocks, may_be_cut, down_columns=True)


class Launch:
    """A problem on one set of strides, ready to run on any addresses.

    Attributes
    ----------
    program
        What runs on operands that are apart; addresses come in the order of ``strides``.
    program_in_place
        What runs where an output lies on an operand: there a second attempt would find its inputs
        overwritten.
    schedule
        How the kernels walk memory.
    """

    def __init__(
        self,
        problem: Problem,
        strides: Mapping[str, tuple[int, ...]],
        threads: int,
        dtypes: Mapping[str, str] | None = None,
    ):
        op, formula = problem.op, problem.formula_in_doubles
        if problem.reverse and isinstance(formula, RowFormula):
            raise TypeError(f"{op.name}: rows have no direction that could be reversed")
        full, row = problem.symbols()
        outputs = tuple(o.name for o in problem.writes)
        written = tuple(k for k, n in enumerate(outputs) if n in strides)
        called = {o.symbol: o.name for o in problem.reads}
        inputs = [called[n.removesuffix("_before")] for n in (*full, *row)]
        sources = (*inputs, *(outputs[w] for w in written))
        stored = {n: element_of(problem, n, dtypes) for n in sources}
        types = tuple(
            (op.operand(n).symbol, kind) for n, kind in stored.items() if kind != problem.element
        )
        layout = choose_layout(
            problem,
            [_along(problem, n, strides[n]) for n in sources],
            [ITEMSIZE[stored[n]] for n in sources],
            [k for k, n in enumerate(sources) if op.operand(n).role is Role.ELEMENT],
        )
        offsets = [0] * len(sources)
        turned = False
        if isinstance(formula, ScanFormula):
            # Backwards along the axis: start at the far end with the stride turned round.
            alone_against = formula.against and formula.prefix is None
            turned = problem.reverse != alone_against
        if turned:
            offsets = layout.turn()
        if isinstance(formula, ScanFormula):
            layout.flip_lanes()
        self.schedule = layout.schedule
        self._problem, self._layout, self._threads = problem, layout, threads
        self._key = KernelKey(
            op,
            problem.selection,
            problem.element,
            layout.schedule,
            full,
            row,
            outputs,
            written,
            types,
            computes_in_singles(problem, full, row, types),
            is_tried_in_singles(problem, full, row, types),
        )
        size = problem.numel * ITEMSIZE[problem.element]
        self._traffic = size * (len(full) + len(written))
        sharing = threads if self._weight() >= self._least_to_share() else 1
        if sharing > 1 and layout.columns and is_pointwise(formula):
            layout.cut_axis(CHUNKS_PER_THREAD * threads)
        self._rows = int(np.prod(layout.outer_sizes, dtype=np.int64)) if layout.outer_sizes else 1
        self._blocks = blocks_of(problem)
        bytes_read = self._touched(inputs, strides, stored)
        bytes_written = self._touched(sources[len(inputs) :], strides, stored)
        touched = self._touched(sources, strides, stored)
        item = sum(ITEMSIZE[stored[n]] for n in sources[: len(full)])
        tile = tiles = 0
        if layout.columns:
            beyond = self._leaves_caches(touched, sharing, item)
            tile = _tile(problem, layout.columns, self._rows, sharing, beyond)
            if self._key.singles and layout.schedule.is_packed:
                tile = _tile_to_keep(problem, tile, self._traffic, sharing)
            tiles = -(-layout.columns // tile)
        cut = self._worth_cutting()
        template = self._template(tile, tiles, turned)
        template[PARTS] = threads if cut else 0
        if self._is_far(touched, sharing, tile * item):
            template[FAR] = 2 if touched > machine.here().caches.last_level else 1
        if machine.here().streams(bytes_read, bytes_written):
            run_bytes = (tile or layout.axis_sizes[0]) * ITEMSIZE[problem.element]
            template[STREAMED] = _alignment_to_stream(run_bytes)
        rows = self._rows * max(1, tiles * tile)
        workspace = _scratch(problem, rows, self._blocks, cut, down_columns=bool(layout.columns))
        patches = [
            Patch(OPERANDS + 2 * k, name, offset)
            for k, (name, offset) in enumerate(zip(sources, offsets, strict=True))
        ]
        if workspace:
            patches.append(Patch(SCRATCH, WORKSPACE))

        def program(phases: list[Phase]) -> Program:
            return Program(template, patches, phases, strides, workspace, threads)

        units = self._rows * (tiles or (template[2] if is_pointwise(formula) else 1))
        phases_of = self._cut if cut else partial(self._uncut, units)
        self.program = self.program_in_place = program(phases_of(scaled=True))
        if cut and isinstance(formula, ScanFormula) and (reads_neighbours(formula) or formula.end):
            # In place, one part may have written what another has yet to read: the neighbour across
            # a cut, or the state in front of a row.
            self.program_in_place = program(self._uncut(units, scaled=True))
        if has_plain_form(problem):
            again = phases_of(scaled=True, condition=STRAINED)
            self.program = program([*phases_of(scaled=False), *again])
        names = list(strides)
        self._outputs = [k for k, n in enumerate(names) if n in op.outputs]
        self._inputs = [k for k, n in enumerate(names) if n not in op.outputs]

    def _is_far(self, touched: int, sharing: int, tile_row: int) -> bool:
        """Whether what is folded is asked for: of columns, where a tile leaves a core's cache.

        A sum of 64x1024 float32 took a quarter more so, one of 1024x1024 in two tiles of a cache of
        2 MB an eighth.
        """
        if not self._layout.columns:
            return machine.here().is_far(touched, sharing)
        return machine.here().is_far(min(BLOCK, self._problem.extent) * tile_row, 1)

    def _leaves_caches(self, touched: int, sharing: int, item: int) -> bool:
        """Whether tiles of columns as wide as within the caches would be read from memory anyway.

        What is read again is still there where the tiles of all threads fit.
        """
        last_level, problem = machine.here().caches.last_level, self._problem
        columns = min(WIDEST_NEAR, self._layout.columns)
        held = 0 if reads_once(problem.formula_in_doubles) else sharing * columns * problem.extent
        return touched > last_level and (not held or held * item > last_level)

    def _touched(
        self,
        sources: Sequence[str],
        strides: Mapping[str, tuple[int, ...]],
        stored: Mapping[str, str],
    ) -> int:
        """Bytes of memory that a run touches; what is broadcast counts once."""
        return sum(
            ITEMSIZE[stored[n]]
            * math.prod(
                size
                for size, step in zip(self._problem.shape_of(n), strides[n], strict=True)
                if step
            )
            for n in set(sources)
        )

    def _template(self, tile: int, tiles: int, turned: bool) -> list[int]:
        """The parameter block but for addresses."""
        problem, layout = self._problem, self._layout
        count = len(layout.axis_strides)
        head = [0] * (OPERANDS + 2 * count)
        blocks = self._blocks
        if is_pointwise(problem.formula_in_doubles):
            blocks = -(-layout.axis_sizes[0] // BLOCK)
        is_bent = layout.schedule.walk is Walk.BENT
        head[0:3] = [self._rows, problem.extent if is_bent else layout.axis_sizes[0], blocks]
        head[4:6] = [len(layout.outer_sizes), len(layout.axis_sizes)]
        head[6] = len(head)
        head[7] = head[6] + len(layout.outer_sizes) * (1 + count)
        head[8:11] = [layout.columns, tile, tiles]
        head[CONSTANTS:FRONT] = constant_words(problem)
        head[FRONT] = _bits(float(problem.extent - 1 if problem.reverse else 0))
        head[ORIGIN], head[TURN] = (problem.extent - 1, -1) if turned else (0, 1)
        if layout.column_strides:
            head[OPERANDS + 1 :: 2] = layout.column_strides
        body = head + layout.outer_sizes + [v for s in layout.outer_strides for v in s]
        return body + layout.axis_sizes + [v for s in layout.axis_strides for v in s]

    def _worth_cutting(self) -> bool:
        """Whether threads should share rows: few rows, that do not even out, of many blocks."""
        rows, threads = self._rows, self._threads
        return (
            threads > 1
            and rows < 2 * threads
            and rows % threads != 0
            and rows <= MOST_CUT_ROWS
            and self._blocks >= LEAST_CUT_BLOCKS
            and self._traffic >= 2 * machine.here().waking_bytes
            and not self._layout.columns
            and not is_pointwise(self._problem.formula_in_doubles)
        )

    def _weight(self) -> int:
        """What the work comes to, in bytes that are moved.

        Elements of two bytes that are read take as long to compute as those of four.
        """
        narrow = max(1, ITEMSIZE["f32"] // ITEMSIZE[self._problem.element]) if self._key.full else 1
        return self._traffic * narrow * (HEAVY_WEIGHT if is_heavy(self._key.formula) else 1)

    def _least_to_share(self) -> int:
        """The weight from which threads share.

        Those that write columns side by side take lines from each other where a row continues,
        which a short call shows unless it computes most of the time: softmax_backward of 256x512
        down columns took 53 microseconds on two threads instead of 44, of bfloat16 39 instead of
        61.
        """
        formula = self._problem.formula_in_doubles
        writes_columns = (
            self._layout.columns
            and not is_pointwise(formula)
            and not (isinstance(formula, RowFormula) and formula.finish)
        )
        if writes_columns and self._weight() == self._traffic:
            return machine.here().waking_bytes
        return machine.here().sharing_bytes

    def _phase(self, part: Part, units: int, condition: int = 0) -> Phase:
        return Phase(partial(kernel_for, self._key, part), units, self._weight(), condition)

    def _uncut(self, units: int, scaled: bool, condition: int = 0) -> list[Phase]:
        return [self._phase(Part(plain=not scaled), units, condition)]

    def _cut(self, scaled: bool, condition: int = 0) -> list[Phase]:
        """The phases where threads share rows."""
        formula, threads = self._problem.formula_in_doubles, self._threads
        blocks, parts = self._rows * self._blocks, self._rows * threads
        if isinstance(formula, RowFormula):
            phases: list[Phase] = []
            for k, step in enumerate(formula.passes):
                fold = self._phase(Part(Step.STAGE, k), blocks, MOVING if step.again else 0)
                if step.again:
                    close = self._phase(Part(Step.CLOSE, k), 1, MOVING)
                    phases += [
                        self._phase(Part(Step.BEGIN, k), 1),
                        *[fold, close] * step.again.most,
                    ]
                elif step.monoid:
                    phases.append(fold)
            last = Part(Step.STAGE, len(formula.passes))
            return [*phases, self._phase(last, self._rows if formula.finish else blocks)]
        if not formula.prefix:
            counted = min(self._blocks, (threads - 1) * -(-self._blocks // threads))
            totals = self._phase(Part(Step.TOTALS), self._rows * counted)
            return [totals, self._phase(Part(Step.PARTS), parts)]
        steps = {Step.PREFIX_TOTALS: blocks, Step.BACK_TOTALS: parts, Step.BACK_PARTS: parts}
        return [
            self._phase(Part(step, plain=not scaled), units, condition)
            for step, units in steps.items()
        ]

    def run(self, addresses: Sequence[int], owners: Any, workspace: int = 0, size: int = 0) -> None:
        """Run on operands at these addresses, in the order of ``strides``; see the program's."""
        program = self.program
        if program is not self.program_in_place:
            targets = {addresses[k] for k in self._outputs}
            if any(addresses[k] in targets for k in self._inputs):
                program = self.program_in_place
        program.run(addresses, owners, workspace, size)


def _tile(problem: Problem, columns: int, units: int, threads: int, beyond: bool) -> int:
    """Columns per tile: as many as the cache holds, but enough tiles that every thread has one.

    Two for every thread took a tenth more: cores write in shorter runs, side by side. Wider ones
    pay where what is touched lies ``beyond`` the caches.
    """
    formula, widest = problem.formula_in_doubles, WIDEST_TILE if beyond else WIDEST_NEAR
    if isinstance(formula, ScanFormula):
        widest = WIDEST_BOTH_WAYS if formula.prefix else WIDEST_ONE_WAY
    # A row of accumulators for each lane, one of totals, and one of what is known.
    doubles = (LANES + 2) * max((len(m.state) for m in _monoids(formula)), default=1)
    widest = min(widest, machine.here().widest(8 * doubles))
    if repeats(formula):
        # Elements that are read again and again should be near.
        widest = min(widest, machine.here().widest(ITEMSIZE[problem.element] * problem.extent))
    share = -(-columns * units // threads)
    tile = max(64, min(widest, share))
    return -(-min(tile, columns) // LANES) * LANES


def _tile_to_keep(problem: Problem, tile: int, traffic: int, threads: int) -> int:
    """A narrower tile, if what is lifted of one so narrow is kept and that pays.

    A softmax of 256x8192 bfloat16 took 0.99 ms so and 1.15 otherwise. Runs of less than 256 columns
    cost more than they save, unless they are near and have two bytes an element: on an Intel with
    2 MB for each core, 1024x1024 bfloat16 took 0.46 ms by 64 columns and 0.57 by 512, float32 0.74
    and 0.61. AMD's last level brings short runs as quickly: 0.38 and 0.51, 0.50 and 0.67.
    """
    formula, here = problem.formula_in_doubles, machine.here()
    if not isinstance(formula, RowFormula) or formula.from_lifted is None:
        return tile
    kept = KEPT // max(1, problem.extent) // LANES * LANES
    if is_amd():
        pays = traffic <= here.caches.last_level // 4
    else:
        pays = not here.is_far(traffic, threads) and ITEMSIZE[problem.element] == 2
    return kept if (64 if pays else 256) <= kept < tile else tile


def _scratch(problem: Problem, rows: int, blocks: int, cut: bool, down_columns: bool) -> int:
    """Bytes of workspace: a state for each block of a row, of the folds that need one."""
    formula = problem.formula_in_doubles
    if blocks < 2:
        return 0
    if isinstance(formula, ScanFormula) and formula.prefix:
        carries = len(formula.prefix.state)
        behind = carries + len(formula.monoid.state) if cut else 0
        groups = groups_of(problem.extent) if down_columns else 0
        return rows * (blocks * (carries + behind) + groups * carries) * 8
    if not cut:
        return 0
    kept = sum(len(m.state) for m in _monoids(formula))
    if isinstance(formula, RowFormula):
        kept += sum(len(step.gives) for step in formula.passes if step.again)
    return rows * blocks * kept * 8


def _monoids(formula: RowFormula | ScanFormula) -> list[Monoid]:
    """What is folded or scanned, but for what a two-way scan does first."""
    if isinstance(formula, ScanFormula):
        return [formula.monoid]
    return [step.monoid for step in formula.passes if step.monoid]
