"""Words of the parameter block of a segment kernel, its workspace, and its tiles."""

from __future__ import annotations

from dataclasses import replace

from ..formulas.record import RowFormula, names_read
from .words import LANES, LINE

# Words 11 to 18 hold the constants of formulas,
# as in any other block; the extent among them is that of a segment, and put in there.
IDS, ID_STRIDE = 0, 1  # ids or offsets, and the byte stride between them
NUM_INPUTS = 2
NUM_COLUMNS = 3
NUM_SEGMENTS = 4
ORDER = 5  # workspace: row numbers in order of id
STARTS = 6  # workspace: where each segment begins in ORDER
COUNTS = 7  # workspace: rows of each part in each segment, then where the next of them goes
PARTS = 8  # parts the rows are sorted in, or the segments of a table are folded in
STATES, TILE = 5, 8  # where tiles or tables are: workspace for states, and columns of a tile
# Where rows of a segment lie together: bytes of an offset, or 0 where sorted ids are searched; the
# offsets, and the byte stride between them.
RUN_SIZE, RUNS, RUN_STRIDE = 6, 7, 8
IS_FAR = (
    7  # where parts of the rows have tables of their own: whether a core's cache holds them not
)
ID_SIZE = 9  # bytes of an id or offset, for kernels that take either size
FLAGS, ORDERED = 9, 8  # of a check: its answer, two rows; whether order matters
FIRST_OUTPUT, NUM_OPERANDS = 10, 19  # among the operands
OPERANDS = 20  # address, byte stride between rows and between columns of each operand

# Where few rows matter to what is folded: their numbers and segments, by blocks of all rows. Each
# block has a count, and room for a vector more than there may be.
HELD = 7
SELDOM_BLOCK = 256
SELDOM_WORDS = 1 + 2 * (SELDOM_BLOCK + LANES)

# Segments that a thread closes at a time, where parts of the rows have tables of their own.
PART_SEGMENTS = 16
# Slices of what a part has listed, so that threads share it.
HOLDER_SLICES = 8

# How long before it is read a row is asked for, in rows, where ids put them in order.
AHEAD = 8

# How long before its number is put in its place a row's place is asked for, in rows. A million ids
# of 100000 segments took 10 ms to sort without.
PLACED_AHEAD = 32

# Ids from this size on are sorted in as many parts as there are threads, up to so many.
PARTED_BYTES = 1 << 18
MOST_PARTS = 4


def sorting_parts(rows: int, threads: int) -> int:
    return min(threads, MOST_PARTS) if 8 * rows >= PARTED_BYTES else 1


def sorting_offsets(segments: int) -> dict[int, int]:
    """Where in the workspace each array of the sort begins, by its word of the block."""
    counts = 8 * (segments + 1)
    return {STARTS: 0, COUNTS: counts, ORDER: counts + 8 * MOST_PARTS * segments}


def sorting_bytes(rows: int, segments: int) -> int:
    return sorting_offsets(segments)[ORDER] + 8 * (rows + AHEAD)


# Columns that are computed at a time, at most.
TILE_COLUMNS = 256


def folds_in_tiles(formula: RowFormula, row: tuple[str, ...]) -> bool:
    """Whether rows can be folded in any order of segments: one pass, that knows a row alone."""
    of_rows = names_read(replace(formula, finish=None)) & {"extent", "index", "first"}
    passes = formula.passes
    one_pass = len(passes) == 1 and passes[0].monoid is not None
    if not one_pass or formula.finish is None or row or of_rows:
        return False
    return not {"index", "first"} & names_read(formula)


def whole_lines(size: int) -> int:
    """Bytes, up to the end of a line."""
    return -(-size // LINE) * LINE


def counting_bytes(formula: RowFormula, segments: int) -> int:
    """What a tile takes to count the rows of every segment, where the formula asks for it."""
    return whole_lines(8 * segments) if "extent" in names_read(formula) else 0


def folds_in_tables(formula: RowFormula) -> bool:
    """Whether there are passes, which need nothing of a row but itself and its segment."""
    if not formula.passes:
        return False
    of_rows = replace(
        formula,
        finish=None,
        passes=tuple(replace(step, close=None) for step in formula.passes),
    )
    return "extent" not in names_read(of_rows) and not {"index", "first"} & names_read(formula)


def is_cheap(formula: RowFormula) -> bool:
    """Whether a row is folded in less time than it takes to find the segments of a thread."""
    monoids = [step.monoid for step in formula.passes]
    return (
        formula.finish is not None
        and len(monoids) == 1
        and monoids[0] is not None
        and len(monoids[0].state) == 1
    )


def table_slots(formula: RowFormula) -> int:
    """Values that a table has for a column of a segment: what is known, or is being folded."""
    known, most = 0, 0
    for step in formula.passes:
        state = len(step.monoid.state) if step.monoid else 0
        most = max(most, known + state)
        known += len(step.names)
    return max(most, known)
