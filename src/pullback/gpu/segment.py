"""Rows that ids or offsets cut into segments: which kernels compute a problem, on what workspace.

Ids that are not sorted are sorted first (by torch's stable sort, on the device), so that the rows
of a segment are taken in row order. Where ids change, segments begin and end. No float is ever
added atomically. Rows whose id is out of range are left out, or get zeros; whether there were any
is noted by an integer minimum on the device.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

import triton
import triton.language as tl

from ..core.declare import Role
from ..core.problem import Problem, folded_by_segments
from ..formulas.record import RowFormula, asks_of_rows, names_read
from ..memory.view import DTYPES
from .frame import Shape, shape_of, vectors_of
from .rows import folds_of
from .segment_rows import make_each_kernel, make_runs_kernel
from .steps import Step, pointers_of
from .tiles import RunTiles, SegmentTile, choose_gather_tile, choose_run_tiles

# What a check holds where it met nothing wrong: greater than any row.
FINE = 2**62


@triton.jit
def check_ids(p_ids, p_found, rows, limit, id_stride, SORTED: tl.constexpr, B: tl.constexpr):
    """The first row out of range, and out of order, into two words that hold the least so far."""
    row = tl.program_id(0).to(tl.int64) * B + tl.arange(0, B)
    inside = row < rows
    ids = tl.load(p_ids + row * id_stride, mask=inside, other=0).to(tl.int64)
    wrong = inside & ((ids < 0) | (ids >= limit))
    # Ids are fine as a rule, and then nothing is written.
    first = tl.min(tl.where(wrong, row, rows), 0)
    tl.atomic_min(p_found, first, mask=first < rows)
    if SORTED:
        after = inside & (row > 0)
        before = tl.load(p_ids + (row - 1) * id_stride, mask=after, other=0).to(tl.int64)
        first = tl.min(tl.where(after & (ids < before), row, rows), 0)
        tl.atomic_min(p_found + 1, first, mask=first < rows)


@triton.jit
def mark_segments(p_keys, p_starts, p_ends, rows, segments, key_stride, B: tl.constexpr):
    """Where each segment begins and ends among sorted ids; those without rows are left alone."""
    row = tl.program_id(0).to(tl.int64) * B + tl.arange(0, B)
    inside = row < rows
    at = p_keys + row * key_stride
    ids = tl.load(at, mask=inside, other=-1).to(tl.int64)
    before = tl.load(at - key_stride, mask=inside & (row > 0), other=-1).to(tl.int64)
    after = tl.load(at + key_stride, mask=row + 1 < rows, other=-1).to(tl.int64)
    known = (ids >= 0) & (ids < segments)
    tl.store(p_starts + ids, row, mask=known & (ids != before))
    tl.store(p_ends + ids, row + 1, mask=known & (ids != after))


@triton.jit
def clear_rows(
    p_result, p_ids, rows, columns, segments, tiles, id_stride, result_row, result_column,
    OFFSETS: tl.constexpr, R: tl.constexpr, C: tl.constexpr,
):  # fmt: skip
    """Zeros in the rows that belong to no segment."""
    program = tl.program_id(0).to(tl.int64)
    row = program // tiles * R + tl.arange(0, R)
    column = program % tiles * C + tl.arange(0, C)
    if OFFSETS:
        first = tl.load(p_ids).to(tl.int64)
        last = tl.load(p_ids + segments * id_stride).to(tl.int64)
        outside = (row < first) | (row >= last)
    else:
        ids = tl.load(p_ids + row * id_stride, mask=row < rows, other=0).to(tl.int64)
        outside = (ids < 0) | (ids >= segments)
    place = p_result + (row * result_row)[:, None] + (column * result_column)[None, :]
    here = (outside & (row < rows))[:, None] & (column < columns)[None, :]
    tl.store(place, tl.zeros([R, C], p_result.dtype.element_ty), mask=here)


def by_offsets(problem: Problem) -> bool:
    """Whether offsets say where segments begin."""
    return problem.cut_by.role is Role.OFFSETS


def order_of(problem: Problem) -> str:
    """How the rows of a segment are found."""
    if by_offsets(problem):
        return "offsets"
    return "sorted" if problem.is_sorted else "unsorted"


def has_runs(problem: Problem) -> bool:
    """Whether something must be known of a segment that only all its rows tell."""
    return asks_of_rows(record_of(problem)) or by_offsets(problem)


def record_of(problem: Problem) -> RowFormula:
    """The record of a segment op."""
    return folded_by_segments(problem.op, problem.formula)


def check_step(problem: Problem, id_stride: int, wants_order: bool, ids: str = "i64") -> Step:
    """Look for ids or offsets that the plan forbids; ``found`` holds the rows."""
    count, limit = problem.num_inputs, problem.num_segments
    if by_offsets(problem):
        count, limit = limit + 1, count + 1
    pointers = ((problem.cut_by.name, ids), ("found", "i64"))
    meta = {"SORTED": wants_order, "B": 1024}
    return Step(check_ids, -(-count // 1024), pointers, (count, limit, id_stride), meta, 4)


def _tiles(problem: Problem) -> RunTiles:
    item = DTYPES[problem.element].itemsize
    passes = [step.monoid for step in problem.formula.passes if step.monoid]
    states = max((len(monoid.state) for monoid in passes), default=1)
    sizes = (problem.num_inputs, problem.embedding_dim, problem.num_segments)
    return choose_run_tiles(item, *sizes, states)


def _states(problem: Problem) -> int:
    """Numbers in the states of all passes."""
    return sum(len(step.monoid.state) for step in record_of(problem).passes if step.monoid)


def workspace_words(problem: Problem) -> dict[str, int]:
    """Words of the workspace, by what they hold."""
    rows, segments = problem.num_inputs, problem.num_segments
    if not has_runs(problem):
        return {}
    words = {}
    if not by_offsets(problem):
        words = {"starts": segments, "ends": segments}
    if order_of(problem) == "unsorted":
        words |= {"order": rows, "keys": rows}
    chunk = _tiles(problem).chunk
    if rows > chunk:
        slots = 2 * (rows // chunk + 1)
        words["workspace"] = max(1, slots * problem.embedding_dim * _states(problem))
    # Each of them begins at a multiple of 16 bytes, as kernels are compiled for.
    return {name: count + count % 2 for name, count in words.items()}


class SegmentLaunch:
    """A segment problem on one set of strides, ready to run on any memory.

    ``strides`` are in elements.
    """

    def __init__(
        self,
        problem: Problem,
        strides: Mapping[str, tuple[int, ...]],
        dtypes: Mapping[str, str] | None = None,
        odd: Collection[str] = (),
    ):
        self._problem, self._strides, self._dtypes = problem, strides, dtypes or {}
        self._shape = replace(
            shape_of(problem, strides, dtypes, odd),
            across=True,
            wide=True,
            long="index" in names_read(record_of(problem)) and problem.num_inputs > 2**24,
        )
        names, vector = self._in_vectors()
        self._shape = replace(self._shape, in_vectors=names, vector=vector)
        self._by = problem.cut_by.name
        self._ids = self._dtypes.get(self._by, "i64")
        self.steps = self._run_steps() if has_runs(problem) else [self._each_step()]

    def _in_vectors(self) -> tuple[tuple[str, ...], int]:
        """Sizes and strides that are passed in vectors, and how long those are."""
        if any(self._strides[p.name][1] != 1 for p in self._shape.operands):
            return (), 1
        rows = {f"{p.name}_r": self._strides[p.name][0] for p in self._shape.operands}
        return vectors_of(self._problem.element, {"units": self._problem.embedding_dim, **rows})

    def _number(self, name: str, value: int) -> int:
        """A size or stride as it is passed."""
        return value // self._shape.vector if name in self._shape.in_vectors else value

    def _numbers(self, shape: Shape) -> tuple[int | float, ...]:
        """Strides of the operands, then parameters of the problem."""
        found = []
        for p in shape.operands:
            row, column = self._strides[p.name]
            found += [self._number(f"{p.name}_r", row), column]
        held = self._problem.constants
        return (*found, *(held[n] for n in shape.constants if n != "extent"))

    def _name(self, phase: str) -> str:
        problem = self._problem
        return "_".join((problem.op.name, *map(str, problem.selection), *phase.split()))

    def _each_step(self) -> Step:
        problem, shape = self._problem, self._shape
        columns = problem.embedding_dim
        tile = choose_gather_tile(DTYPES[problem.element].itemsize, columns)
        tiles = -(-columns // tile.columns)
        units = self._number("units", columns)
        numbers = (units, problem.num_inputs, problem.num_segments, tiles)
        return Step(
            make_each_kernel(self._name("each"), problem.formula, shape),
            -(-problem.num_inputs // tile.rows) * tiles,
            (*pointers_of(self._shape), (self._by, self._ids)),
            (*numbers, *self._strides[self._by], *self._numbers(shape)),
            {"U": tile.columns, "B": tile.rows, "IN_PLACE": False},
            tile.warps,
        )

    def _run_steps(self) -> list[Step]:
        problem, tiles = self._problem, _tiles(self._problem)
        rows, segments = problem.num_inputs, problem.num_segments
        if not segments:
            return self._clear_steps()
        stride = self._strides[self._by][0]
        keys = (self._by, self._ids) if order_of(problem) != "unsorted" else ("keys", self._ids)
        key_stride = stride if order_of(problem) != "unsorted" else 1
        steps = []
        if not by_offsets(problem):
            pointers = (keys, ("starts", "i64"), ("ends", "i64"))
            numbers = (rows, segments, key_stride)
            steps.append(Step(mark_segments, -(-rows // 1024), pointers, numbers, {"B": 1024}, 4))
        steps.append(self._run_step("all", segments, tiles.short, keys, key_stride))
        if rows > tiles.chunk:
            slots = 2 * (rows // tiles.chunk + 1)
            phases = [*(f"fold {k}" for k in folds_of(problem.formula)), "end"]
            steps += [self._run_step(p, slots, tiles.long, keys, key_stride) for p in phases]
        return [*steps, *self._clear_steps()]

    def _run_step(
        self, phase: str, programs: int, tile: SegmentTile, keys: tuple[str, str], key_stride: int
    ) -> Step:
        problem, shape, order = self._problem, self._shape, order_of(self._problem)
        columns, segments = problem.embedding_dim, problem.num_segments
        tiles = -(-columns // tile.columns)
        bounds = (("starts", "i64"), ("ends", "i64"))
        start_stride = 1
        if order == "offsets":
            bounds = ((self._by, self._ids), ("ends", self._ids))
            start_stride = self._strides[self._by][0]
        pointers = (*pointers_of(self._shape), *bounds)
        pointers += (("order", "i64"),) if order == "unsorted" else ()
        chunk = _tiles(problem).chunk
        numbers: tuple[int | float, ...] = (self._number("units", columns),)
        numbers += (problem.num_inputs, segments, tiles, chunk)
        numbers += (start_stride,)
        if phase != "all":
            pointers += (("workspace", "f64"), keys)
            numbers += (key_stride, segments.bit_length())
        return Step(
            make_runs_kernel(self._name(phase), problem.formula, shape, phase, order),
            programs * tiles,
            pointers,
            (*numbers, *self._numbers(shape)),
            {"U": tile.columns, "B": tile.rows, "IN_PLACE": False},
            tile.warps,
        )

    def _clear_steps(self) -> list[Step]:
        """Zeros for rows of no segment, in outputs that have them."""
        problem = self._problem
        columns = problem.embedding_dim
        tile = choose_gather_tile(DTYPES[problem.element].itemsize, columns)
        tiles = -(-columns // tile.columns)
        shared = (problem.num_inputs, columns, problem.num_segments, tiles)
        meta = {"OFFSETS": by_offsets(problem), "R": tile.rows, "C": tile.columns}
        return [
            Step(
                clear_rows,
                -(-problem.num_inputs // tile.rows) * tiles,
                ((p.name, p.dtype), (self._by, self._ids)),
                (*shared, self._strides[self._by][0], *self._strides[p.name]),
                meta,
                tile.warps,
            )
            for p in self._shape.stored
            if p.full
        ]
