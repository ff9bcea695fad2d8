"""Which kernel computes what: an op, or a part of it where rows are cut over threads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from functools import cache
from typing import Any

from ..core.declare import Op, Role
from ..formulas.record import RowFormula, ScanFormula, in_doubles, names_read
from .compile import Kernel, compile_kernel
from .data import numbered
from .layout import Schedule, Walk


class Step(Enum):
    """What is computed of rows, or of rows that are cut."""

    WHOLE = "whole"  # everything
    STAGE = "stage"  # of a row formula, one pass or what comes last
    BEGIN, CLOSE = "begin", "close"  # of a pass that is taken again: before it, and every time
    TOTALS, PARTS = "totals", "parts"  # of a scan: blocks by themselves, then from what is before
    # Of a two-way scan, from both sides.
    PREFIX_TOTALS, BACK_TOTALS, BACK_PARTS = "prefix-totals", "back-totals", "back-parts"


STAGES = (Step.STAGE, Step.BEGIN, Step.CLOSE)


@dataclass(frozen=True)
class Part:
    """The part of an op that a kernel computes."""

    step: Step = Step.WHOLE
    stage: int = 0  # which one of the stages
    plain: bool = False  # without scaling products, which may turn out to be needed

    def __str__(self) -> str:
        stage = str(self.stage) if self.step in STAGES else ""
        return f"{'plain-' if self.plain else ''}{self.step.value}{stage}"


@dataclass(frozen=True)
class KernelKey:
    """Everything the kernels of a launch are compiled for."""

    op: Op
    selection: tuple[Any, ...]
    element: str
    schedule: Schedule
    full: tuple[str, ...]
    row: tuple[str, ...]
    outputs: tuple[str, ...]  # what the record gives
    written: tuple[int, ...]  # which of them are kept
    types: tuple[tuple[str, str], ...]  # of operands that do not have the element type
    singles: bool = False  # whether elements are computed on float32 lanes
    bounded: bool = False  # whether they are where that gives the bits of float64 lanes

    @property
    def formula(self) -> RowFormula | ScanFormula:
        record = in_doubles(self.op.record(self.selection, self.element), self.element)
        return numbered(record, self.op.data, (*self.full, *self.row))

    @property
    def ends(self) -> tuple[str, ...]:
        """Outputs that a scan writes at the end of a row."""
        if isinstance(self.formula, RowFormula):
            return ()
        return tuple(n for n in self.outputs if self.op.operand(n).role is Role.ROW)

    @property
    def name(self) -> str:
        outputs = "".join(self.outputs[w] for w in self.written)
        # Operands by name: a kernel is compiled for their number and order.
        operands = f"{'_'.join(self.full)}_of_{'_'.join(self.row)}_of_{outputs}"
        operands += "".join(f"_{name}_{kind}" for name, kind in self.types)
        operands += "_in_float32" if self.singles else "_bounded" if self.bounded else ""
        chosen = "-".join(str(value) for value in self.selection) or "any"
        return "-".join((self.op.name, chosen, self.element, str(self.schedule), operands))


@cache
def kernel_for(key: KernelKey, part: Part) -> Kernel:
    """The compiled kernel for a part of an op."""
    return compile_kernel(f"{key.name}-{part}", key.formula, lambda: _make(key, part))


def _make(key: KernelKey, part: Part) -> Callable:
    # Here, since only what must be compiled needs the compiler.
    from .codegen.operands import Operands
    from .loops.columns import make_columns_kernel
    from .loops.rows import make_rows_kernel
    from .loops.scan_columns import make_scan_columns_kernel
    from .loops.scan_cut import (
        make_back_parts_kernel,
        make_back_totals_kernel,
        make_prefix_totals_kernel,
        make_scan_parts_kernel,
        make_scan_totals_kernel,
    )
    from .loops.scan_rows import make_scan_rows_kernel
    from .loops.stages import make_stage_kernel

    formula, element, schedule = key.formula, key.element, key.schedule
    operands = Operands(
        element,
        key.full,
        key.row,
        key.outputs,
        key.written,
        bent=schedule.walk is Walk.BENT,
        packed=schedule.is_packed,
        flipped=schedule.walk is Walk.FLIPPED,
        types=dict(key.types),
        ends=key.ends,
        singles=key.singles,
        bounded=key.bounded,
        asked=names_read(formula),
    )
    if isinstance(formula, RowFormula):
        if part.step in STAGES:
            return make_stage_kernel(formula, element, operands, part.stage, part.step)
        make_row = make_columns_kernel if schedule.columns else make_rows_kernel
        return make_row(formula, element, operands)
    if part.step in (Step.TOTALS, Step.PARTS):
        of_totals = part.step is Step.TOTALS
        make_part = make_scan_totals_kernel if of_totals else make_scan_parts_kernel
        return make_part(formula, element, operands)
    make_scan = {
        Step.PREFIX_TOTALS: make_prefix_totals_kernel,
        Step.BACK_TOTALS: make_back_totals_kernel,
        Step.BACK_PARTS: make_back_parts_kernel,
        Step.WHOLE: make_scan_columns_kernel if schedule.columns else make_scan_rows_kernel,
    }[part.step]
    return make_scan(formula, element, operands, part.plain)
