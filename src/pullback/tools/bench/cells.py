"""Which cases a benchmark runs: ops of the catalog by dtypes, shapes and axes."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...core.catalog import OPS, catalog
from ...core.declare import Op, Role, Type
from ...core.elements import FLOATS
from ...errors import UnsupportedError
from ...formulas.record import RowFormula
from ..case import Case, cuts
from ..choices import chosen

SegmentShape = tuple[int, int, int]


@dataclass(frozen=True)
class Grid:
    """Shapes with the axes to run them on, and the shapes of segment ops.

    All dtypes run on the first of the shapes, ``elsewhere`` says which run on the others.
    ``classes`` are shapes of scores with a target in every row, and their dtypes; ``masked`` says
    whether ops that take a mask run with one too. ``into`` is how many segments rows of other
    shapes are cut into, a 26th of the rows if it is not said.
    """

    shapes: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]
    segments: tuple[SegmentShape, ...]
    dtypes: tuple[str, ...]
    elsewhere: tuple[str, ...] = ("f32",)
    orders: tuple[str, ...] = ("sorted", "random")  # of ids
    classes: tuple[tuple[tuple[int, ...], tuple[str, ...]], ...] = ()
    masked: bool = False
    into: int | None = None


# One size within the caches of a core, one beyond those of most CPUs.
QUICK = Grid(
    (((256, 512), (-1, 0)), ((4096, 4096), (-1, 0))),
    ((4096, 64, 300), (131072, 64, 10000)),
    ("f32",),
    orders=("random",),
    classes=(((32, 128256), ("bf16",)),),
)
FULL = Grid(
    (
        ((4096, 4096), (-1, 0)),
        ((16, 64), (-1, 0)),
        ((64, 256), (-1, 0)),
        ((256, 512), (-1, 0)),
        ((512, 1024), (-1, 0)),
        ((1024, 1024), (-1, 0)),
        ((2048, 2048), (-1, 0)),
        ((16384, 8192), (-1, 0)),
        ((32768, 128), (-1,)),
        ((128, 32768), (-1,)),
        ((64, 256, 1024), (1,)),
        ((2, 8_000_000), (-1,)),
        ((16_000_000,), (-1,)),
        ((1, 128), (-1,)),
    ),
    ((262144, 64, 10000), (477263, 256, 135361), (1_000_000, 4, 100_000)),
    FLOATS,
    elsewhere=("f32", "bf16"),
    classes=(((256, 128256), ("f32", "bf16")),),
    masked=True,
)

# Every op at every size from the cost of a call to beyond the caches, in an hour or so.
SIZES = Grid(
    (
        ((512, 1024), (-1, 0)),
        ((16, 64), (-1, 0)),
        ((64, 256), (-1, 0)),
        ((256, 512), (-1, 0)),
        ((1024, 1024), (-1, 0)),
        ((2048, 2048), (-1, 0)),
        ((4096, 4096), (-1, 0)),
        ((16384, 8192), (-1, 0)),
    ),
    ((4096, 64, 300), (131072, 64, 10000)),
    FLOATS,
    elsewhere=("f32", "bf16"),
    orders=("random",),
)


DIRECTIONS = ("backward", "forward", "both")
ORDERS = ("sorted", "random")


def _goes(op: Op, direction: str) -> bool:
    # The folding of a segment op is its forward, so that one is part of every backward benchmark.
    return direction in ("both", op.direction) or (direction == "backward" and bool(cuts(op)))


def default_ops(direction: str = "backward") -> tuple[Op, ...]:
    """The ops of one direction, or of both; segment ops come forward and backward."""
    return tuple(op for op in catalog() if _goes(op, direction))


def find_op(name: str) -> Op:
    """The op of this exact name.

    Raises
    ------
    UnsupportedError
        For a name that is not in the catalog, with the nearest ones.
    """
    op = OPS.get(name)
    if op is None:
        near = difflib.get_close_matches(name, OPS, n=3, cutoff=0.5)
        hint = f"did you mean {', '.join(near)}?" if near else "`pullback ops` lists them"
        raise UnsupportedError(f"unknown op {name!r}; {hint}")
    return op


def named_ops(names: Iterable[str], direction: str = "backward") -> tuple[Op, ...]:
    """Ops by name; the name of a kind stands for its ops of the direction."""
    found: dict[str, Op] = {}
    for name in names:
        both = [op for op in catalog() if op.kind == name and _goes(op, direction)]
        for op in both or [find_op(name)]:
            found[op.name] = op
    return tuple(found.values())


def cells(
    grid: Grid,
    ops: Sequence[Op] = (),
    dtypes: Sequence[str] = (),
    shapes: Sequence[tuple[int, ...]] = (),
    axes: Sequence[int] = (),
    choices: Mapping[str, Mapping[str, Any]] | None = None,
) -> Iterator[Case]:
    """The cases of a grid; what is given replaces that part of it.

    ``choices`` are those among the records of an op, by its name; ops without are left out.
    """
    for case in _plain_cells(grid, ops, dtypes, shapes, axes):
        if choices is None:
            yield case
        elif case.op.name in choices:
            choice = choices[case.op.name]
            yield chosen(case, choice) if choice else case


def _plain_cells(
    grid: Grid,
    ops: Sequence[Op],
    dtypes: Sequence[str],
    shapes: Sequence[tuple[int, ...]],
    axes: Sequence[int],
) -> Iterator[Case]:
    first = (grid.shapes[0][0], list(grid.shapes[0][1]))
    for op in ops or default_ops():
        for element in dtypes or grid.dtypes:
            if element not in op.dtypes:
                continue
            everywhere = bool(dtypes) or element in grid.elsewhere
            if cuts(op):
                yield from _segment_cells(op, element, grid, shapes, everywhere)
                continue
            for shape, own_axes in _shapes(grid, shapes, axes, everywhere):
                for axis in own_axes if op.parameter("axis") else own_axes[:1]:
                    yield Case.of(op, element, shape, axis=axis)
                if grid.masked and not shapes and (shape, own_axes) == first and element == "f32":
                    yield from (Case.of(op, element, shape, (n,), axis=-1) for n in masks(op))
        if not shapes and any(o.type is Type.INDEX and o.role is Role.ROW for o in op.reads):
            for shape, own in grid.classes:
                yield from (Case.of(op, e, shape, axis=-1) for e in own if e in (dtypes or own))


def masks(op: Op) -> list[str]:
    """The masks of an op that is no scan: what they leave out does not enter its arithmetic."""
    found = [o.name for o in op.reads if o.type is Type.BOOL and o.broadcasts]
    return found if isinstance(op.record(), RowFormula) else []


def _shapes(grid: Grid, shapes: Sequence[tuple[int, ...]], axes: Sequence[int], everywhere: bool):
    if not shapes:
        for shape, own in grid.shapes if everywhere else grid.shapes[:1]:
            yield shape, [a for a in axes or own if -len(shape) <= a < len(shape)]
        return
    for shape in shapes:
        wanted = axes or ((-1, 0) if len(shape) > 1 else (-1,))
        kept = {a % len(shape): a for a in reversed(wanted) if -len(shape) <= a < len(shape)}
        yield shape, list(reversed(kept.values()))


def _segment_cells(
    op: Op, element: str, grid: Grid, shapes: Sequence[tuple[int, ...]], everywhere: bool
):
    if shapes:
        wanted: Iterable[SegmentShape] = [
            (s[0], s[1], grid.into or max(1, s[0] // 26)) for s in shapes if len(s) == 2
        ]
    else:
        wanted = grid.segments if everywhere else grid.segments[:1]
    for rows, width, segments in wanted:
        for order in grid.orders:
            yield Case.of(op, element, (rows, width), (), segments, order == "sorted")
