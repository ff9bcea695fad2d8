"""Small problems that make the kernels of an op compile."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping

import numpy as np

from ...core.declare import Op
from .case import Case
from .operands import make_operands, make_outputs

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
    """Cases which together need every kernel of the ops for these dtypes and layouts."""
    dtypes, layouts = tuple(dtypes), tuple(layouts)
    for op in ops:
        for element in dtypes:
            if element not in op.dtypes:
                continue
            if op.family == "segment":
                for order in ("sorted", "random"):
                    yield Case(op, element, (64, 16), None, segments=8, order=order)
                continue
            if op.family == "lerp":
                yield Case(op, element, (16, 64), None)
                continue
            for layout in layouts:
                shape, axis = LAYOUTS[layout]
                if layout == "several" and op.family != "reduce":
                    continue
                case = Case(op, element, shape, axis)
                policies = op.ties if all_ties and op.ties else (None,)
                yield from (dataclasses.replace(case, ties=t) for t in policies)


def warm_up(case: Case) -> None:
    """Run a case once, on two threads, with ids of both widths where it has ids."""
    operands = make_operands(case, save=lambda x: np.ones(case.shape_of("y"), x.dtype))
    plan = case.plan(2)
    for ids in (np.int64, np.int32):
        if "segment_ids" in operands:
            operands["segment_ids"] = operands["segment_ids"].astype(ids)
        plan.run(**operands, **make_outputs(case))
        if case.family != "segment":
            break


def cached_kernels() -> int | None:
    """How many kernels the cache on disk holds; None where there is no such folder."""
    from ...cpu import disk
    from ...cpu.compile import source_digest

    folder = disk.folder_for(source_digest())
    return None if folder is None else sum(1 for _ in disk.kernels(folder))
