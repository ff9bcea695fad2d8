"""From the operands of a segment op to a launch: its kernels, their units, and the block."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

from ..core.declare import Op, Operand, Role, Type
from ..core.problem import Problem
from ..errors import UnsupportedError
from ..formulas.record import RowFormula, in_doubles, names_read
from . import machine, pool
from . import segment_words as segment
from .compile import Kernel, compile_kernel
from .data import constant_words, numbered
from .launch import HEAVY_WEIGHT, is_heavy
from .program import WORKSPACE, Patch, Phase, Program
from .segment_parts import PartTables, holder_bytes, part_tables_of
from .segment_ways import (
    has_few_runs,
    is_narrow,
    lanes_of,
    needs_no_counts,
    order_of,
    record_of,
    way_of,
)
from .segment_words import (
    HOLDER_SLICES,
    PART_SEGMENTS,
    SELDOM_BLOCK,
    SELDOM_WORDS,
    TILE_COLUMNS,
    counting_bytes,
    folds_in_tables,
    folds_in_tiles,
    is_cheap,
    table_slots,
)
from .words import CONSTANTS, FRONT, ITEMSIZE, LANES, LINE

# To look at an id takes about a fifth of the time that a row of one element takes to be folded.
MOST_TABLE_PARTS = 8
# What the kernels are compiled for that only look at ids.
_NO_FORMULA = RowFormula()


@dataclass(frozen=True)
class Tiles:
    """Columns folded for all segments at once, for rows in any order."""

    columns: int  # of a tile
    count: int
    bytes_each: int

    @property
    def bytes(self) -> int:
        return self.count * self.bytes_each + LINE


def tiles_of(problem: Problem, threads: int) -> Tiles | None:
    """Tiles whose states fit the caches, with one for every thread; None where rows are ordered.

    Rows whose states take more than four cache lines are put in order and asked for ahead of time:
    262144 rows of 64 float32 into 10000 segments took 7.4 ms so and 18 in tiles, which random
    states push out of a core's cache; 131072 of 64 float16 took 0.54 ms and 0.84. Of shorter ones
    most of the time would go into their order: of 16 it was 0.49 ms and 0.27.
    """
    formula = record_of(problem)
    rows_in_any_order = order_of(problem) == "unsorted" and way_of(problem) == "runs"
    row_operands = tuple(o.symbol for o in problem.used(Role.ROW))
    columns = problem.embedding_dim
    is_short = 8 * columns <= 4 * LINE
    if not rows_in_any_order or not is_short or not folds_in_tiles(formula, row_operands):
        return None
    state = 8 * problem.num_segments * len(formula.passes[0].monoid.state)
    room = machine.here().caches.last_level // 2 // threads
    counts = counting_bytes(formula, problem.num_segments)
    fitting = room // state // LANES * LANES if state else TILE_COLUMNS
    even = -(-columns // threads // LANES) * LANES
    width = min(fitting, max(LANES, even))
    if width < LANES:
        return None
    return Tiles(width, -(-columns // width), state * width + counts)


def table_bytes(problem: Problem) -> int:
    """Bytes of a table of all segments, to which rows of few columns are folded as they come.

    0 where rows are sorted instead: by their ids already, for a formula that asks where in its
    segment a row is, or since the table would not fit the caches.
    """
    rows_in_any_order = order_of(problem) == "unsorted" and way_of(problem) == "runs"
    if not rows_in_any_order or not lanes_of(problem):
        return 0
    return _fitting_table(problem)


def _fitting_table(problem: Problem) -> int:
    formula, segments = record_of(problem), problem.num_segments
    states = 8 * lanes_of(problem) * table_slots(formula) * segments
    if not folds_in_tables(formula) or states > machine.here().caches.last_level // 2:
        return 0
    return states + counting_bytes(formula, segments) + 2 * LINE


@dataclass(frozen=True)
class Prepared:
    """What is found out before rows of few columns that lie together are computed.

    Attributes
    ----------
    table
        Bytes of a table of what is known of every segment, by which each row is computed alone.
    starts
        Bytes for where sorted ids change.
    """

    table: int = 0
    starts: int = 0

    @property
    def bytes(self) -> int:
        return self.table + self.starts


def prepared_for(problem: Problem) -> Prepared:
    """What pays for runs of few columns; nothing for others."""
    if not has_few_runs(problem) or seldom_bytes(problem):
        return Prepared()
    in_runs, by_offsets = way_of(problem) == "runs", order_of(problem) == "offsets"
    table = starts = 0
    if in_runs and record_of(problem).apply and lanes_of(problem) == problem.embedding_dim:
        table = _fitting_table(problem)
    if in_runs and not by_offsets:
        starts = 8 * (problem.num_segments + 1)
    return Prepared(table, starts)


def seldom_bytes(problem: Problem) -> int:
    """Bytes of a table and of lists of the few rows that matter to it; 0 where all do."""
    in_any_order, formula = order_of(problem) == "unsorted", record_of(problem)
    is_any = problem.num_inputs > 0 and problem.num_segments > 0 and lanes_of(problem) > 0
    if not is_any or not formula.seldom or not (in_any_order or has_few_runs(problem)):
        return 0
    table = _fitting_table(problem)
    return table + 8 * SELDOM_WORDS * -(-problem.num_inputs // SELDOM_BLOCK) if table else 0


def table_parts(problem: Problem, traffic: int, threads: int) -> int:
    """Parts that the segments of a table are folded in, each by a look at all ids.

    A table that stays in the caches of a core is folded to by one thread where that is cheap: a
    maximum of a million rows in 1000 segments took 0.66 ms so, and 0.6 to 1.2 in two parts.
    """
    is_near = table_bytes(problem) <= machine.here().caches.l2 // 4
    if is_near and is_cheap(record_of(problem)):
        return 1
    if not pool.wakes(traffic):
        return 1
    most = min(MOST_TABLE_PARTS, problem.num_segments)
    return max(1, pool.threads_for(most, traffic, threads))


def workspace_bytes(problem: Problem) -> int:
    """Bytes that suffice for the order of the rows, or for states, whatever the threads."""
    found = [_other_workspace_bytes(problem)]
    for most in (1, MOST_TABLE_PARTS):
        tables = part_tables_of(problem, most)
        if tables:
            found.append(tables.bytes + tables.masks + holder_bytes(problem, most))
    return max(found)


def _other_workspace_bytes(problem: Problem) -> int:
    seldom = seldom_bytes(problem)
    if seldom:
        return seldom
    if order_of(problem) != "unsorted":
        return prepared_for(problem).bytes
    if way_of(problem) != "runs":
        return 0
    table = table_bytes(problem)
    if table:
        return table
    tiles = tiles_of(problem, 1)
    ordering = segment.sorting_bytes(problem.num_inputs, problem.num_segments)
    if tiles is None:
        return ordering
    # Of tiles as narrow as they may be, since threads that share the caches make them so.
    counts = counting_bytes(record_of(problem), problem.num_segments)
    column = (tiles.bytes_each - counts) // tiles.columns
    most = -(-problem.embedding_dim // LANES)
    states = column * (problem.embedding_dim + TILE_COLUMNS) + most * counts
    return max(ordering, states + LINE)


@dataclass(frozen=True)
class SegmentKey:
    """Everything the kernel of a segment op is compiled for."""

    op: Op
    selection: tuple[Any, ...]
    element: str
    together: bool  # whether the rows of a segment lie together, by sorted ids or offsets
    way: str
    full: tuple[str, ...]
    row: tuple[str, ...]
    outputs: tuple[str, ...]  # what the record gives
    written: tuple[int, ...]  # which of them are kept
    types: tuple[tuple[str, str], ...] = ()  # of operands that do not have the element type
    packed: bool = False
    narrow: bool = False  # less than eight columns
    lanes: int = 0  # that a row takes, where several share a vector
    columns: int = 0  # that are packed, or of a table of what is known of segments
    by_offsets: bool = False  # where rows are computed one by one, each by its segment
    width: int = 0  # columns taken at a time, where parts of the rows have tables of their own
    ids: str = ""  # the type of ids that the kernel reads
    no_counts: bool = False  # where nobody asks how many rows a segment has


@cache
def kernel_for(key: SegmentKey) -> Kernel:
    """The compiled kernel of a segment op."""
    record = in_doubles(key.op.record(key.selection, key.element), key.element)
    if key.no_counts:
        assert isinstance(record, RowFormula)
        assert record.of_none
        record = record.of_none[1]
    formula = numbered(record, key.op.data, (*key.full, *key.row))
    assert isinstance(formula, RowFormula)
    element = key.element

    def make():
        from .codegen.operands import Operands
        from .loops import (
            segment_holders,
            segment_narrow,
            segment_parts,
            segment_rows,
            segment_seldom,
            segment_tables,
        )

        operands = Operands(
            element,
            key.full,
            key.row,
            key.outputs,
            key.written,
            packed=key.packed,
            types=dict(key.types),
            asked=names_read(formula),
        )
        if key.width and key.way in ("find holders", "give holders"):
            return segment_holders.make_kernel(formula, element, operands, key.way, key.ids)
        if key.width:
            return segment_parts.make_kernel(
                formula, element, operands, key.width, key.way, key.ids
            )
        if key.way in ("find", "held", "give"):
            return segment_seldom.make_kernel(
                formula, element, operands, key.lanes, key.packed, key.way, key.by_offsets
            )
        if key.lanes:
            what = "apply" if key.way == "pointwise" else key.way
            return segment_tables.make_kernel(
                formula, element, operands, key.lanes, key.packed, what, key.by_offsets
            )
        if key.narrow and key.way in ("runs", "known"):
            packed = key.columns if key.packed else 1
            pitch = key.columns if key.way == "known" else 0
            return segment_narrow.make_runs_kernel(
                formula, element, operands, key.together, packed, pitch
            )
        loops = segment_narrow if key.narrow else segment_rows
        if key.way == "pointwise":
            return loops.make_pointwise_kernel(formula, element, operands)
        if key.way == "tiles":
            return loops.make_tiles_kernel(formula, element, operands)
        return loops.make_runs_kernel(formula, element, operands, key.together)

    outputs = "_".join(key.outputs[w] for w in key.written)
    operands = "_of_".join(("_".join(key.full), "_".join(key.row), outputs))
    operands += "".join(f"_{name}_{kind}" for name, kind in key.types)
    way = key.way
    if key.way == "runs":
        way = "together" if key.together else "in_order"
    way += "_packed" if key.packed else ""
    way += "_narrow" if key.narrow else f"_{key.lanes}_lanes" if key.lanes else ""
    way += f"_of_{key.columns}" if key.columns else ""
    way += "_by_offsets" if key.by_offsets else ""
    way += "_uncounted" if key.no_counts else ""
    way += f"_in_parts_{key.width}_{key.ids}" if key.width else ""
    # What was chosen is in the formula: ids and offsets share a kernel that has the same one.
    words = (key.op.name, element, operands, f"segment_{way}")
    return compile_kernel("-".join(words), formula, make)


@cache
def plain_kernel(which: str, *arguments: Any) -> Kernel:
    """A kernel without arithmetic, which ``make_<which>_kernel`` makes of the arguments."""

    def make() -> Callable:
        from .loops import segment, segment_runs, segment_spans

        loops = {"starts": segment_runs, "spread": segment_spans}.get(which, segment)
        kernel: Callable = getattr(loops, f"make_{which}_kernel")(*arguments)
        return kernel

    return compile_kernel("-".join(("segment", which, *map(str, arguments))), _NO_FORMULA, make)


def _are_dense(
    problem: Problem,
    operands: list[Operand],
    strides: Mapping[str, tuple[int, ...]],
    item: Mapping[str, int],
) -> bool:
    """Whether columns fill their lanes, and rows follow each other in memory as in the lanes."""
    columns = problem.embedding_dim
    return columns == lanes_of(problem) and all(
        strides[o.name][1] == item[o.name]
        and (o.role is Role.ROW or strides[o.name][0] == columns * item[o.name])
        for o in operands
    )


class SegmentLaunch:
    """A segment problem on one set of strides, ready to run on any addresses.

    Attributes
    ----------
    program
        What runs; addresses come in the order of ``strides``.
    """

    def __init__(
        self,
        problem: Problem,
        strides: Mapping[str, tuple[int, ...]],
        dtypes: Mapping[str, str],
        threads: int,
    ):
        op, asked = problem.op, names_read(record_of(problem))
        full, row = (
            [o for o in problem.used(role) if o.symbol in asked]
            for role in (Role.ELEMENT, Role.ROW)
        )
        written = tuple(k for k, o in enumerate(problem.writes) if o.name in strides)
        outputs = [problem.writes[w] for w in written]
        operands = [*full, *row, *outputs]
        for operand in operands:
            if operand.type not in (Type.ELEMENT, Type.STATE):
                raise UnsupportedError(
                    f"{op.name}: {operand.name} of type {operand.type.value}; operands of a "
                    f"segment op have its element type, or are states"
                )
        by = problem.cut_by.name
        ids = dtypes[by]
        key = SegmentKey(
            op,
            problem.selection,
            problem.element,
            order_of(problem) != "unsorted",
            way_of(problem),
            tuple(o.symbol for o in full),
            tuple(o.symbol for o in row),
            tuple(o.name for o in problem.writes),
            written,
            tuple((o.symbol, dtypes[o.name]) for o in operands if o.type is Type.STATE),
            narrow=is_narrow(problem),
            no_counts=needs_no_counts(problem),
        )
        template = self._words(problem, [strides[o.name] for o in operands])
        template[segment.ID_STRIDE] = strides[by][0]
        template[segment.ID_SIZE] = ITEMSIZE[ids]
        template[segment.FIRST_OUTPUT] = len(operands) - len(outputs)
        prepared = prepared_for(problem)
        patches = self._place_runs(problem, prepared, template, by)
        patches += [Patch(segment.OPERANDS + 3 * k, o.name) for k, o in enumerate(operands)]
        item = {o.name: ITEMSIZE[dtypes.get(o.name, problem.element)] for o in operands}
        dense = _are_dense(problem, operands, strides, item)
        if key.way == "pointwise" and lanes_of(problem):
            by_offsets = order_of(problem) == "offsets"
            few = replace(key, lanes=lanes_of(problem), packed=dense, by_offsets=by_offsets)
            key = replace(few, narrow=False, together=False)
        if key.way == "runs" and key.narrow and dense and problem.embedding_dim > 1:
            key = replace(key, packed=True, columns=problem.embedding_dim)
        phases = self._phases(problem, key, ids, operands)
        if prepared.bytes:
            phases = self._after_preparing(problem, key, phases, prepared, ids, dense)
            self.program = Program(template, patches, phases, strides, prepared.bytes, threads)
            return
        tables = self._part_tables(problem, phases[0].traffic, threads)
        if tables and self._follow(problem, operands, strides, item):
            patches.append(Patch(segment.STATES, WORKSPACE))
            template[segment.PARTS] = tables.parts
            template[segment.IS_FAR] = int(tables.bytes > machine.here().caches.l2 // 2)
            key = replace(key, width=tables.width, ids=ids, packed=False, narrow=False, columns=0)
            lists = holder_bytes(problem, tables.parts) if dense else 0
            phases = self._of_parts(problem, key, phases[0].traffic, tables, lists > 0)
            workspace = tables.bytes + (lists or tables.masks)
            self.program = Program(template, patches, phases, strides, workspace, threads)
            return
        seldom = seldom_bytes(problem)
        if seldom:
            patches = [patch for patch in patches if patch.place != segment.RUNS]
            patches.append(Patch(segment.STATES, WORKSPACE))
            patches.append(Patch(segment.HELD, WORKSPACE, _fitting_table(problem)))
            few = replace(key, packed=dense, columns=0)
            phases = self._of_few(problem, few, template, phases[0].traffic)
            self.program = Program(template, patches, phases, strides, seldom, threads)
            return
        table = table_bytes(problem)
        if table:
            patches.append(Patch(segment.STATES, WORKSPACE))
            parts = table_parts(problem, phases[0].traffic, threads)
            template[segment.PARTS] = parts
            key = replace(key, packed=dense, columns=0)
            phases = self._of_table(problem, key, phases[0].traffic, parts)
            self.program = Program(template, patches, phases, strides, table, threads)
            return
        tiles = tiles_of(problem, 2 if threads > 1 and pool.wakes(phases[0].traffic) else 1)
        workspace = tiles.bytes if tiles else workspace_bytes(problem)
        if tiles:
            packed = all(strides[o.name][1] == item[o.name] for o in operands)
            key = replace(key, way="tiles", packed=packed, narrow=False, columns=0)
            kernel = partial(kernel_for, key)
            phases = [Phase(kernel, tiles.count, phases[0].traffic)]
            template[segment.TILE] = tiles.columns
            patches.append(Patch(segment.STATES, WORKSPACE))
        elif workspace:
            parts = segment.sorting_parts(problem.num_inputs, threads)
            template[segment.PARTS] = parts
            phases = [*self._sorting(ids, parts), *phases]
            places = segment.sorting_offsets(problem.num_segments)
            patches += [Patch(word, WORKSPACE, offset) for word, offset in places.items()]
        self.program = Program(template, patches, phases, strides, workspace, threads)

    @staticmethod
    def _words(problem: Problem, strides: list[tuple[int, ...]]) -> list[int]:
        words = [0] * segment.OPERANDS
        words[segment.NUM_INPUTS] = problem.num_inputs
        words[segment.NUM_COLUMNS] = problem.embedding_dim
        words[segment.NUM_SEGMENTS] = problem.num_segments
        words[segment.NUM_OPERANDS] = len(strides)
        words[CONSTANTS:FRONT] = constant_words(problem)
        for row_stride, column_stride in strides:
            words += [0, row_stride, column_stride]
        return words

    @staticmethod
    def _phases(
        problem: Problem, key: SegmentKey, ids: str, operands: list[Operand]
    ) -> list[Phase]:
        rows, segments = problem.num_inputs, problem.num_segments
        width = problem.embedding_dim * ITEMSIZE[problem.element]
        counts = [segments if o.role is Role.ROW else rows for o in operands]
        traffic = sum(counts) * width + rows * ITEMSIZE[ids]
        traffic *= HEAVY_WEIGHT if is_heavy(record_of(problem)) else 1
        if key.way == "gather" and order_of(problem) == "offsets":
            return [Phase(partial(plain_kernel, "spread", key.element), rows, traffic)]
        if key.way == "gather":
            return [Phase(partial(plain_kernel, "gather", key.element, ids), rows, traffic)]
        if key.way == "pointwise":
            return [Phase(partial(kernel_for, key), rows, traffic)]
        phases = [Phase(partial(kernel_for, key), segments, traffic)]
        by_offsets = order_of(problem) == "offsets"
        writes_elements = operands[-1].role is Role.ELEMENT
        if writes_elements and (problem.drops or by_offsets):
            kernel = partial(plain_kernel, "clear", key.element, ids, by_offsets)
            phases.append(Phase(kernel, rows, rows * (width + ITEMSIZE[ids])))
        return phases

    @staticmethod
    def _place_runs(
        problem: Problem, prepared: Prepared, template: list[int], by: str
    ) -> list[Patch]:
        """Where ids and offsets are: the caller's, or those that are found out."""
        size, stride = template[segment.ID_SIZE], template[segment.ID_STRIDE]
        patches = [Patch(segment.IDS, by)]
        if order_of(problem) == "offsets":
            template[segment.RUN_SIZE], template[segment.RUN_STRIDE] = size, stride
            patches.append(Patch(segment.RUNS, by))
        if prepared.table:
            patches.append(Patch(segment.STATES, WORKSPACE))
        if prepared.starts:
            template[segment.RUN_SIZE] = template[segment.RUN_STRIDE] = 8
            patches.append(Patch(segment.RUNS, WORKSPACE, prepared.table))
        return patches

    @staticmethod
    def _after_preparing(
        problem: Problem,
        key: SegmentKey,
        phases: list[Phase],
        prepared: Prepared,
        ids: str,
        dense: bool,
    ) -> list[Phase]:
        """The phases with what they stand on."""
        rows, segments, traffic = problem.num_inputs, problem.num_segments, phases[0].traffic
        by_offsets = order_of(problem) == "offsets"
        before = []
        if prepared.starts:
            before.append(Phase(partial(plain_kernel, "starts", ids), rows, 8 * rows))
        if prepared.table:
            columns = problem.embedding_dim
            known = replace(key, way="known", columns=columns, packed=dense and columns > 1)
            apply = replace(
                key,
                way="apply",
                lanes=columns,
                narrow=False,
                columns=0,
                packed=dense,
                by_offsets=by_offsets,
            )
            phases = [
                Phase(partial(kernel_for, known), segments, traffic),
                Phase(partial(kernel_for, apply), rows, traffic),
            ]
        return [*before, *phases]

    @staticmethod
    def _part_tables(problem: Problem, traffic: int, threads: int) -> PartTables | None:
        most = pool.threads_for(MOST_TABLE_PARTS, traffic, threads)
        return part_tables_of(problem, max(1, most))

    @staticmethod
    def _follow(
        problem: Problem,
        operands: list[Operand],
        strides: Mapping[str, tuple[int, ...]],
        item: Mapping[str, int],
    ) -> bool:
        """Whether columns are packed, and rows of segments follow each other."""
        return all(
            strides[o.name][1] == item[o.name]
            and (
                o.role is Role.ELEMENT or strides[o.name][0] == problem.embedding_dim * item[o.name]
            )
            for o in operands
        )

    @staticmethod
    def _of_parts(
        problem: Problem, key: SegmentKey, traffic: int, tables: PartTables, listed: bool
    ) -> list[Phase]:
        """Folds of the parts, what follows for each segment, and what rows are given by it."""
        groups = -(-problem.num_segments // PART_SEGMENTS)

        def phase(way: str, units: int, moved: int) -> Phase:
            return Phase(partial(kernel_for, replace(key, way=way)), units, moved)

        close = phase("close", groups, tables.bytes)
        if listed:
            find = phase("find holders", tables.parts, traffic)
            return [find, close, phase("give holders", tables.parts * HOLDER_SLICES, traffic)]
        fold = phase("fold", tables.parts, traffic)
        gives = record_of(problem).apply is not None
        return [fold, close, *([phase("give", problem.num_inputs, traffic)] if gives else [])]

    @staticmethod
    def _of_table(problem: Problem, key: SegmentKey, traffic: int, parts: int) -> list[Phase]:
        """Folds to a table, and what rows make of it."""

        def phase(way: str, units: int) -> Phase:
            few = replace(key, way=way, lanes=lanes_of(problem), narrow=False)
            return Phase(partial(kernel_for, few), units, traffic)

        fold = phase("fold", parts)
        return [fold, phase("apply", problem.num_inputs)] if record_of(problem).apply else [fold]

    @staticmethod
    def _of_few(
        problem: Problem, key: SegmentKey, template: list[int], traffic: int
    ) -> list[Phase]:
        """Looks for the rows that matter, folds them to a table, and gives them their part.

        One thread folds: two, each with half of the segments, took 0.6 ms for what one took 0.45,
        since both fetch the lists of the other.
        """
        by_offsets, blocks = order_of(problem) == "offsets", -(-problem.num_inputs // SELDOM_BLOCK)
        few = replace(key, lanes=lanes_of(problem), narrow=False, together=False)
        template[segment.PARTS] = 1
        find = replace(few, way="find", by_offsets=by_offsets)
        return [
            Phase(partial(kernel_for, find), blocks, traffic),
            Phase(partial(kernel_for, replace(few, way="held")), 1, traffic),
            Phase(partial(kernel_for, replace(few, way="give")), blocks, traffic),
        ]

    @staticmethod
    def _sorting(ids: str, parts: int) -> list[Phase]:
        """What puts the numbers of rows in order of their ids."""
        shared = machine.here().waking_bytes
        return [
            Phase(partial(plain_kernel, "count", ids), parts, shared),
            Phase(partial(plain_kernel, "place"), 1, shared),
            Phase(partial(plain_kernel, "fill", ids), parts, shared),
        ]
