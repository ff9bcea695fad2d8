"""Small problems that make the kernels of an op compile."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping

import numpy as np

from ...core import parse
from ...core.declare import Op
from ..case import Case, cuts
from ..choices import selections
from ..operands import make_operands, make_outputs

# Layout -> shape and axes: which way the axis lies decides the kernel; one long row may be cut over
# threads; several axes that do not merge into one take a kernel of their own.
LAYOUTS: Mapping[str, tuple[tuple[int, ...], int | tuple[int, ...]]] = {
    "last": ((16, 64), -1),
    "first": ((64, 64), 0),
    "long": ((1, 600_000), -1),
    "several": ((8, 3, 16), (0, 2)),
}


def warm_cases(
    ops: Iterable[Op], dtypes: Iterable[str], layouts: Iterable[str], all_ties: bool = False
) -> Iterator[Case]:
    """Cases which together need every kernel of the ops for these dtypes and layouts.

    ``all_ties`` asks for every selection of records, not only the usual one.
    """
    for op, element in itertools.product(tuple(ops), tuple(dtypes)):
        if element in op.dtypes:
            for case in _places(op, element, layouts):
                yield from selections(case) if all_ties else [case]


def _places(op: Op, element: str, layouts: Iterable[str]) -> Iterator[Case]:
    axis = op.parameter("axis")
    if cuts(op):
        for is_sorted in (False, True):
            yield Case.of(op, element, (64, 16), segments=8, is_sorted=is_sorted)
    elif axis is None:
        yield Case.of(op, element, (16, 64))
    else:
        for layout in layouts:
            shape, along = LAYOUTS[layout]
            if isinstance(along, int) or axis.parse is parse.axes:
                yield Case.of(op, element, shape, axis=along)


def warm_up(case: Case) -> None:
    """Run a case once, on two threads, with integers of both widths where it has some."""
    operands = make_operands(case, save=_ones)
    plan = case.plan(2)
    whole = [n for n, a in operands.items() if a.dtype == np.int64]
    for width in (np.int64, np.int32) if whole else (np.int64,):
        plan.run(**operands | {n: operands[n].astype(width) for n in whole}, **make_outputs(case))


def _ones(forward: Case, operands: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Saves that need no kernel of the forward."""
    return {n: np.ones(forward.shape_of(n), forward.dtype_of(n)) for n in forward.outputs}


def cached_kernels() -> int | None:
    """How many kernels the cache on disk holds; None where there is no such folder."""
    from ...cpu import disk
    from ...cpu.compile import source_digest

    folder = disk.folder_for(source_digest())
    return None if folder is None else sum(1 for _ in disk.kernels(folder))
