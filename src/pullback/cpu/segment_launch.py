"""From the operands of a segment op to a launch: its kernels, their units, and the block."""

from __future__ import annotations

import struct
from array import array
from dataclasses import dataclass
from functools import cache
from typing import Any

from ..core.declare import Op, Operand, Role, Type
from ..core.problem import Problem
from ..errors import UnsupportedError
from ..formulas.record import RowFormula, is_pointwise, names_read
from . import pool
from .codegen.block import CONSTANT_NAMES, CONSTANTS
from .codegen.operands import Operands
from .codegen.storage import ITEMSIZE
from .compile import Kernel, compile_kernel
from .loops import segment
from .loops.segment_rows import make_pointwise_kernel, make_runs_kernel

WORKSPACE = "workspace"

# What the kernels are compiled for that only look at ids.
_NO_FORMULA = RowFormula()


def cut_by(op: Op) -> Operand:
    """The operand that cuts rows into segments: ids or offsets."""
    return next(o for o in op.reads if o.role in (Role.IDS, Role.OFFSETS))


def record_of(problem: Problem) -> RowFormula:
    """The record that a kernel computes, in float64."""
    formula = problem.formula
    if not isinstance(formula, RowFormula):
        raise UnsupportedError(f"{problem.op.name}: a segment op folds rows, it does not scan them")
    return formula


def order_of(problem: Problem) -> str:
    """How the rows of a segment are found."""
    if cut_by(problem.op).role is Role.OFFSETS:
        return "offsets"
    return "sorted" if problem.is_sorted else "unsorted"


def way_of(problem: Problem) -> str:
    """How a problem is computed.

    In ``"runs"``, segment by segment, where something is known of a segment only by its rows. Else
    each row by itself: a ``"gather"`` of bits or, with arithmetic, ``"pointwise"``.
    """
    formula = record_of(problem)
    of_segment = {"extent", "index", "first"} & names_read(formula)
    if not is_pointwise(formula) or of_segment or order_of(problem) == "offsets":
        return "runs"
    rows, elements = problem.used(Role.ROW), problem.used(Role.ELEMENT)
    is_gather = formula.copies and len(rows) == 1 and not elements and len(problem.op.writes) == 1
    return "gather" if is_gather else "pointwise"


def workspace_bytes(problem: Problem) -> int:
    """Bytes for the order of the rows: none where they are runs already, or need no order."""
    if order_of(problem) != "unsorted" or way_of(problem) != "runs":
        return 0
    return segment.sorting_bytes(problem.num_inputs, problem.num_segments)


@dataclass(frozen=True)
class SegmentKey:
    """Everything the kernel of a segment op is compiled for."""

    op: Op
    selection: tuple[Any, ...]
    element: str
    ids: str
    order: str
    way: str
    full: tuple[str, ...]
    row: tuple[str, ...]
    written: tuple[int, ...]


@cache
def kernel_for(key: SegmentKey) -> Kernel:
    """The compiled kernel of a segment op."""
    formula = key.op.record(key.selection, key.element)
    assert isinstance(formula, RowFormula)
    element, ids = key.element, key.ids

    def make():
        operands = Operands(element, key.full, key.row, key.op.outputs, key.written)
        if key.way == "pointwise":
            return make_pointwise_kernel(formula, element, operands, ids)
        return make_runs_kernel(formula, element, operands, ids, key.order)

    outputs = "_".join(key.op.outputs[w] for w in key.written)
    operands = "_of_".join(("_".join(key.full), "_".join(key.row), outputs))
    chosen = "-".join(str(value) for value in key.selection) or "any"
    order = key.order if key.way == "runs" else "any"
    words = (key.op.name, chosen, element, ids, order, operands, f"segment-{key.way}")
    return compile_kernel("-".join(words), formula, make)


@cache
def kernel_by_ids(role: str, ids: str) -> Kernel:
    """A kernel that looks at ids alone."""
    make = {
        "check": segment.make_check_kernel,
        "count": segment.make_count_kernel,
        "fill": segment.make_fill_kernel,
    }[role]
    return compile_kernel(f"segment-{role}-{ids}", _NO_FORMULA, lambda: make(ids))


@cache
def place_kernel() -> Kernel:
    return compile_kernel("segment-place", _NO_FORMULA, segment.make_place_kernel)


@cache
def gather_kernel(element: str, ids: str) -> Kernel:
    name = f"segment-gather-{element}-{ids}"
    return compile_kernel(name, _NO_FORMULA, lambda: segment.make_gather_kernel(element, ids))


@cache
def clear_kernel(element: str, ids: str, by_offsets: bool) -> Kernel:
    name = f"segment-clear-{element}-{ids}-{'offsets' if by_offsets else 'ids'}"
    return compile_kernel(
        name, _NO_FORMULA, lambda: segment.make_clear_kernel(element, ids, by_offsets)
    )


@dataclass(frozen=True)
class Step:
    """A kernel run over its units, after the step before it."""

    kernel: Kernel
    units: int
    traffic: int


class SegmentLaunch:
    """A segment problem on one set of strides, ready to run on any addresses.

    Attributes
    ----------
    template
        Words of the parameter block, but for addresses.
    addresses
        Words that hold addresses: whose, and how far from its start.
    steps
        The kernels to run.
    workspace
        Bytes of workspace, which ``addresses`` know as ``WORKSPACE``.
    """

    def __init__(
        self, problem: Problem, strides: dict[str, tuple[int, ...]], ids: str, threads: int
    ):
        op, asked = problem.op, names_read(record_of(problem))
        full, row = (
            [o for o in problem.used(role) if o.symbol in asked]
            for role in (Role.ELEMENT, Role.ROW)
        )
        written = tuple(k for k, n in enumerate(op.outputs) if n in strides)
        outputs = [op.writes[w] for w in written]
        key = SegmentKey(
            op,
            problem.selection,
            problem.element,
            ids,
            order_of(problem),
            way_of(problem),
            tuple(o.symbol for o in full),
            tuple(o.symbol for o in row),
            written,
        )
        operands = [*full, *row, *outputs]
        for operand in operands:
            if operand.type is not Type.ELEMENT:
                raise UnsupportedError(
                    f"{op.name}: {operand.name} of type {operand.type.value}; operands of a "
                    f"segment op have its element type"
                )
        by = cut_by(op).name
        self.template = self._words(problem, [strides[o.name] for o in operands])
        self.template[segment.ID_STRIDE] = strides[by][0]
        self.template[segment.FIRST_OUTPUT] = len(operands) - len(outputs)
        self.addresses = [(segment.IDS, by, 0)]
        self.addresses += [(segment.OPERANDS + 3 * k, o.name, 0) for k, o in enumerate(operands)]
        self.workspace = workspace_bytes(problem)
        self.steps = self._steps(problem, key, operands, threads)

    @staticmethod
    def _words(problem: Problem, strides: list[tuple[int, ...]]) -> list[int]:
        words = [0] * segment.OPERANDS
        words[segment.NUM_INPUTS] = problem.num_inputs
        words[segment.NUM_COLUMNS] = problem.embedding_dim
        words[segment.NUM_SEGMENTS] = problem.num_segments
        words[segment.NUM_OPERANDS] = len(strides)
        held = problem.constants
        for k, name in enumerate(CONSTANT_NAMES):
            (words[CONSTANTS + k],) = struct.unpack("<q", struct.pack("<d", held.get(name, 0.0)))
        for row_stride, column_stride in strides:
            words += [0, row_stride, column_stride]
        return words

    def _steps(
        self, problem: Problem, key: SegmentKey, operands: list[Operand], threads: int
    ) -> list[Step]:
        rows, segments = problem.num_inputs, problem.num_segments
        width = problem.embedding_dim * ITEMSIZE[problem.element]
        counts = [segments if o.role is Role.ROW else rows for o in operands]
        traffic = sum(counts) * width + rows * ITEMSIZE[key.ids]
        if key.way != "runs":
            kernel = gather_kernel(key.element, key.ids) if key.way == "gather" else kernel_for(key)
            return [Step(kernel, rows, traffic)]
        steps = [Step(kernel_for(key), segments, traffic)]
        if self.workspace:
            steps = [*self._sorting(problem, key.ids, threads), *steps]
        by_offsets = key.order == "offsets"
        writes_elements = operands[-1].role is Role.ELEMENT
        if writes_elements and (problem.drops or by_offsets):
            kernel = clear_kernel(key.element, key.ids, by_offsets)
            steps.append(Step(kernel, rows, rows * (width + ITEMSIZE[key.ids])))
        return steps

    def _sorting(self, problem: Problem, ids: str, threads: int) -> list[Step]:
        """The kernels that put the numbers of rows in order of their ids."""
        offsets = segment.sorting_offsets(problem.num_segments)
        self.addresses += [(word, WORKSPACE, offset) for word, offset in offsets.items()]
        parts = segment.sorting_parts(problem.num_inputs, threads)
        self.template[segment.PARTS] = parts
        return [
            Step(kernel_by_ids("count", ids), parts, pool.SERIAL_BYTES),
            Step(place_kernel(), 1, pool.SERIAL_BYTES),
            Step(kernel_by_ids("fill", ids), parts, pool.SERIAL_BYTES),
        ]

    def run(self, addresses: dict[str, int], threads: int, owners: Any) -> None:
        """Run on operands and a workspace at these addresses, which ``owners`` keep alive."""
        block = self.template[:]
        for word, name, offset in self.addresses:
            block[word] = addresses[name] + offset
        words = array("q", block)
        p, held = words.buffer_info()[0], (words, owners)
        for step in self.steps:
            pool.run(step.kernel.address, p, step.units, step.traffic, threads, held)
