"""Segment sums: rows of one id summed, and the gather of rows that is their backward.

Ids are sorted first where they are not (by torch's stable sort, on the device); a binary search
finds where each segment begins. A program folds a segment, or a fixed share of it where there are
few long ones; no float is ever added atomically. Rows whose id is out of range are left out
(forward) or get zeros (backward); whether there were any is noted by an integer minimum on the
device.
"""

from __future__ import annotations

from functools import cache

import triton
import triton.language as tl

from ..core.problem import Problem
from ..formulas.record import RowFormula
from ..memory.view import DTYPES
from .bind import bind
from .frame import COMPUTE, STORED, literal
from .source import Source, compile_source
from .steps import Step
from .tiles import STEPS, choose_gather_tile, choose_segment_tile

# What a check holds where it met nothing wrong: greater than any row.
FINE = 2**62


@triton.jit
def check_ids(p_ids, p_found, rows, segments, id_stride, SORTED: tl.constexpr, B: tl.constexpr):
    """The first row out of range, and out of order, into two words that hold the least so far."""
    row = tl.program_id(0).to(tl.int64) * B + tl.arange(0, B)
    inside = row < rows
    ids = tl.load(p_ids + row * id_stride, mask=inside, other=0).to(tl.int64)
    wrong = inside & ((ids < 0) | (ids >= segments))
    # Ids are fine as a rule, and then nothing is written.
    first = tl.min(tl.where(wrong, row, rows), 0)
    tl.atomic_min(p_found, first, mask=first < rows)
    if SORTED:
        after = inside & (row > 0)
        before = tl.load(p_ids + (row - 1) * id_stride, mask=after, other=0).to(tl.int64)
        first = tl.min(tl.where(after & (ids < before), row, rows), 0)
        tl.atomic_min(p_found + 1, first, mask=first < rows)


@triton.jit
def find_starts(p_ids, p_starts, rows, segments, id_stride, halvings, B: tl.constexpr):
    """Where each segment begins among sorted ids, and after them where the last one ends."""
    segment = tl.program_id(0).to(tl.int64) * B + tl.arange(0, B)
    low = tl.full([B], 0, tl.int64)
    high = low + rows
    for _ in range(halvings):
        middle = (low + high) // 2
        open_ = low < high
        ids = tl.load(p_ids + middle * id_stride, mask=open_, other=0).to(tl.int64)
        less = open_ & (ids < segment)
        low = tl.where(less, middle + 1, low)
        high = tl.where(open_ & (ids >= segment), middle, high)
    tl.store(p_starts + segment, low, mask=segment <= segments)


@triton.jit
def gather(
    p_values, p_ids, p_result, rows, columns, segments, tiles, id_stride, value_row, value_column,
    result_row, result_column, R: tl.constexpr, C: tl.constexpr,
):  # fmt: skip
    """Row ids[n] of the values into row n of the result; zeros where there is no such row."""
    program = tl.program_id(0).to(tl.int64)
    row = program // tiles * R + tl.arange(0, R)
    column = program % tiles * C + tl.arange(0, C)
    inside = row < rows
    ids = tl.load(p_ids + row * id_stride, mask=inside, other=-1).to(tl.int64)
    known = (ids >= 0) & (ids < segments)
    across = (column < columns)[None, :]
    place = p_values + (ids * value_row)[:, None] + (column * value_column)[None, :]
    values = tl.load(place, mask=known[:, None] & across, other=0.0)
    place = p_result + (row * result_row)[:, None] + (column * result_column)[None, :]
    tl.store(place, values, mask=inside[:, None] & across)


@cache
def make_sum_kernel(formula: RowFormula, element: str, ordered: bool, phase: str):
    """The kernel that folds segments (``"all"``) or shares of them (``"part"``), or joins those.

    ``ordered`` says that rows are taken in the order of a sort; ``"join"`` comes last.
    """
    monoid = formula.passes[0].monoid
    compute, stored = COMPUTE[element], STORED[element]
    names = {"tl": tl, "lift": bind(monoid.lift), "combine": bind(monoid.combine)}
    size = range(len(monoid.state))

    def listed(prefix: str) -> str:
        return ", ".join(f"{prefix}{c}" for c in size)

    def fold(prefix: str) -> str:
        given = listed(prefix) if len(size) == 1 else f"({listed(prefix)})"
        return f"tl.reduce({given}, 0, combine)"

    body = Source()
    body(
        "program = tl.program_id(0).to(tl.int64)",
        "column = program % tiles * C + tl.arange(0, C)",
        "segment = program // tiles % segments",
        "part = program // tiles // segments",
        "across = column < columns",
    )
    for c in size:
        body(f"carry{c} = tl.full([C], {literal(monoid.identity[c])}, tl.float64)")
    place = "p_parts + (({part} * {size} + {c}) * segments + segment) * columns + column"
    if phase == "join":
        with body.block("for part in range(parts):"):
            for c in size:
                at = place.format(part="part", size=len(size), c=c)
                body(f"more{c} = tl.load({at}, mask=across, other=0.0)")
            body(f"{listed('carry')} = combine({listed('carry')}, {listed('more')})")
    else:
        body(
            "first = tl.load(p_starts + segment)",
            "stop = tl.load(p_starts + segment + 1)",
        )
        if phase == "part":
            body(
                "count = stop - first",
                "stop = first + count * (part + 1) // parts",
                "first = first + count * part // parts",
            )
        with body.block(f"for outer in range(first, stop, R * {STEPS}):"):
            for c in size:
                body(f"lane{c} = tl.full([R, C], {literal(monoid.identity[c])}, {compute})")
            head = f"for start in range(outer, tl.minimum(outer + R * {STEPS}, stop), R):"
            with body.block(head):
                body("at = start + tl.arange(0, R)", "valid = at < stop")
                if ordered:
                    body("row = tl.load(p_order + at, mask=valid, other=0)")
                else:
                    body("row = at")
                body(
                    "here = valid[:, None] & across[None, :]",
                    "along = (row * value_row)[:, None] + (column * value_column)[None, :]",
                    f"given = tl.load(p_values + along, mask=here, other=0.0).to({compute})",
                    f"{listed('lifted')} = lift(given)",
                )
                for c in size:
                    identity = literal(monoid.identity[c])
                    body(f"lifted{c} = tl.where(here, lifted{c}, {identity}).to({compute})")
                body(f"{listed('lane')} = combine({listed('lane')}, {listed('lifted')})")
            body(f"{listed('total')} = {fold('lane')}")
            wide = ", ".join(f"total{c}.to(tl.float64)" for c in size)
            body(f"{listed('carry')} = combine({listed('carry')}, {wide})")
    if phase == "part":
        for c in size:
            body(
                f"tl.store({place.format(part='part', size=len(size), c=c)}, carry{c}, mask=across)"
            )
    else:
        narrow = ".to(tl.float32)" if stored in ("tl.float16", "tl.bfloat16") else ""
        at = "p_result + segment * result_row + column * result_column"
        body(f"tl.store({at}, carry0{narrow}.to({stored}), mask=across)")
    pointers = {
        "all": ["p_values", "p_starts", *(["p_order"] if ordered else []), "p_result"],
        "part": ["p_values", "p_starts", *(["p_order"] if ordered else []), "p_parts"],
        "join": ["p_parts", "p_result"],
    }[phase]
    numbers = ["columns", "segments", "tiles", "parts"]
    if phase != "join":
        numbers += ["value_row", "value_column"]
    if phase != "part":
        numbers += ["result_row", "result_column"]
    parameters = [*pointers, *numbers, "R: tl.constexpr", "C: tl.constexpr"]
    return compile_source(f"segment_sum_{phase}", parameters, body, names)


def check_step(problem: Problem, id_stride: int, wants_order: bool) -> Step:
    """Look for ids that the plan forbids; ``found`` holds the rows."""
    numbers = (problem.num_inputs, problem.num_segments, id_stride)
    meta = {"SORTED": wants_order, "B": 1024}
    programs = -(-problem.num_inputs // 1024)
    return Step(check_ids, programs, ("segment_ids", "found"), numbers, meta, 4)


def gather_steps(problem: Problem, strides: dict[str, tuple[int, ...]]) -> list[Step]:
    """The backward; strides are in elements."""
    columns = problem.embedding_dim
    tile = choose_gather_tile(DTYPES[problem.element].itemsize, columns)
    tiles = -(-columns // tile.columns)
    pointers = ("d_output", "segment_ids", "d_input")
    numbers = (
        *(problem.num_inputs, columns, problem.num_segments, tiles),
        *(*strides["segment_ids"], *strides["d_output"], *strides["d_input"]),
    )
    programs = -(-problem.num_inputs // tile.rows) * tiles
    return [
        Step(gather, programs, pointers, numbers, {"R": tile.rows, "C": tile.columns}, tile.warps)
    ]


def workspace_words(problem: Problem) -> dict[str, int]:
    """Words of the workspace of a forward, by what they hold."""
    rows, columns, segments = problem.num_inputs, problem.embedding_dim, problem.num_segments
    item = DTYPES[problem.element].itemsize
    parts = choose_segment_tile(item, rows, columns, segments).parts
    words = {"starts": segments + 1}
    if not problem.is_sorted:
        words |= {"order": rows, "keys": rows}
    if parts > 1:
        words["parts"] = parts * segments * columns * len(problem.formula.passes[0].monoid.state)
    return words


def sum_steps(problem: Problem, strides: dict[str, tuple[int, ...]]) -> list[Step]:
    """The forward, once unsorted ids are in ``keys`` and the rows' order in ``order``."""
    rows, columns, segments = problem.num_inputs, problem.embedding_dim, problem.num_segments
    tile = choose_segment_tile(DTYPES[problem.element].itemsize, rows, columns, segments)
    tiles = -(-columns // tile.columns)
    keys, key_stride = ("segment_ids", strides["segment_ids"][0])
    order: tuple[str, ...] = ()
    if not problem.is_sorted:
        keys, key_stride, order = "keys", 1, ("order",)
    numbers = (rows, segments, key_stride, rows.bit_length())
    found = [Step(find_starts, -(-(segments + 1) // 128), (keys, "starts"), numbers, {"B": 128}, 4)]
    shape = (columns, segments, tiles, tile.parts)
    meta = {"R": tile.rows, "C": tile.columns}
    programs = segments * tiles

    def step(phase: str, count: int, pointers: tuple[str, ...], steps: tuple[int, ...]) -> Step:
        kernel = make_sum_kernel(problem.formula, problem.element, bool(order), phase)
        return Step(kernel, count, pointers, (*shape, *steps), meta, tile.warps)

    reads = ("input", "starts", *order)
    if tile.parts == 1:
        both = (*strides["input"], *strides["output"])
        return [*found, step("all", programs, (*reads, "output"), both)]
    return [
        *found,
        step("part", programs * tile.parts, (*reads, "parts"), strides["input"]),
        step("join", programs, ("parts", "output"), strides["output"]),
    ]
