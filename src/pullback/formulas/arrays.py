"""A problem's formula run on whole arrays, in the library that holds them.

Not fast: every step of a fold is a sweep over arrays. It serves where a library is to differentiate
a formula or to transform it, and as a second opinion on what the kernels compute. What differs from
one library to another is a :class:`Namespace`; how records are walked is in ``array_rows.py`` and
``array_segments.py``, and what becomes of operands and results here.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from ..core.declare import Operand, Role, Type
from ..core.problem import Problem
from ..errors import UnsupportedError
from .array_rows import Rows, Values
from .array_segments import Segments
from .namespaces import NUMPY, Namespace
from .record import ScanFormula


def evaluate(
    problem: Problem, operands: Mapping[str, Any], namespace: Namespace | None = None
) -> tuple[Any, ...]:
    """The outputs that a problem has, in the order of its op.

    Parameters
    ----------
    problem
        What to compute.
    operands
        Arrays by the names of the op's operands, which broadcast to the shapes of the problem.
    namespace
        The library of the arrays; NumPy's if it is not said.
    """
    run = _by_segments if problem.is_segmented else _by_rows
    if namespace is None or namespace is NUMPY:
        with np.errstate(all="ignore"):
            return run(problem, operands, NUMPY)
    return run(problem, operands, namespace)


def _by_rows(
    problem: Problem, operands: Mapping[str, Any], namespace: Namespace
) -> tuple[Any, ...]:
    order = _rows_last(problem)
    count = math.prod(problem.shape[d] for d in order[: len(order) - len(problem.axes)])
    values: dict[Role, Values] = {Role.ELEMENT: {}, Role.ROW: {}}
    for operand, array in _used(problem, operands, namespace):
        length = problem.extent if operand.role is Role.ELEMENT else 1
        turned = namespace.transposed(array, order)
        values[operand.role][operand.symbol] = turned.reshape((count, length))
    like = namespace.wide(_lead(problem, operands))
    formula = namespace.formula_of(problem)
    rows = Rows(namespace, formula, like, (count, problem.extent), problem.reverse)
    results = rows.run(values[Role.ELEMENT], values[Role.ROW], problem.constants)
    back = [order.index(d) for d in range(len(order))]
    finished = []
    for operand, result in _outputs(problem, results):
        shape = problem.shape_of(operand.name)
        array = namespace.transposed(result.reshape(tuple(shape[d] for d in order)), back)
        finished.append(namespace.cast(array, _dtype(problem, operand, operands, namespace)))
    return tuple(finished)


def _used(
    problem: Problem, operands: Mapping[str, Any], namespace: Namespace
) -> Iterator[tuple[Operand, Any]]:
    """The operands that the formula reads, in their full shapes and wide."""
    for operand in (*problem.used(Role.ELEMENT), *problem.used(Role.ROW)):
        array = namespace.wide(operands[operand.name])
        yield operand, namespace.module.broadcast_to(array, problem.shape_of(operand.name))


def _rows_last(problem: Problem) -> list[int]:
    """The dimensions with the op's axes at the end."""
    rest = [d for d in range(len(problem.shape)) if d not in problem.axes]
    return [*rest, *problem.axes]


def _outputs(problem: Problem, results: Mapping[Role, list[Any]]) -> Iterator[tuple[Operand, Any]]:
    """The outputs there are, each with what the formula gave for it by position or by row.

    A record gives those, or all that the op may have.
    """
    made = problem.writes
    if sum(map(len, results.values())) != len(made):
        made = problem.op.writes
    left = {role: iter(values) for role, values in results.items()}
    for operand in made:
        result = next(left[operand.role])
        if operand in problem.writes:
            yield operand, result


def _dtype(
    problem: Problem, output: Operand, operands: Mapping[str, Any], namespace: Namespace
) -> Any:
    """The type that an output is declared with."""
    if output.type is Type.BOOL:
        return namespace.boolean
    if output.type is Type.INDEX:
        return namespace.module.int64
    if output.type is Type.STATE:
        return namespace.module.float64
    return _lead(problem, operands).dtype


def _lead(problem: Problem, operands: Mapping[str, Any]) -> Any:
    """An operand of the op's element type."""
    names = (o.name for o in problem.reads if o.type is Type.ELEMENT)
    return next(operands[n] for n in names if n in operands)


def _by_segments(
    problem: Problem, operands: Mapping[str, Any], namespace: Namespace
) -> tuple[Any, ...]:
    if isinstance(problem.formula, ScanFormula):
        raise UnsupportedError(f"{problem.op.name}: a segment op folds rows, it does not scan them")
    count = problem.num_segments
    segment = _segment_of_each(problem, operands, namespace)
    order = namespace.ascending(segment)
    columns = list(range(1, len(problem.shape)))
    inside = segment[order] < count
    values: dict[Role, Values] = {Role.ELEMENT: {}, Role.ROW: {}}
    for operand, array in _used(problem, operands, namespace):
        last = namespace.transposed(array, [*columns, 0])
        if operand.role is Role.ELEMENT:
            # What belongs to no segment is a segment of ones: no derivative is NaN because of it.
            last = namespace.module.where(inside, last[..., order], namespace.full(last, 1, ()))
        values[operand.role][operand.symbol] = last
    like = namespace.wide(_lead(problem, operands))
    shape = (*problem.shape[1:], problem.num_inputs)
    formula = namespace.formula_of(problem)
    segments = Segments(namespace, formula, like, shape, segment[order], count)
    results = segments.run(values[Role.ELEMENT], values[Role.ROW], problem.constants)
    back = namespace.ascending(order)
    finished = []
    for operand, result in _outputs(problem, results):
        if operand.role is Role.ELEMENT:
            result = namespace.module.where(inside, result, namespace.full(result, 0, ()))
            result = result[..., back]
        array = namespace.transposed(result, [len(columns), *range(len(columns))])
        finished.append(namespace.cast(array, _dtype(problem, operand, operands, namespace)))
    return tuple(finished)


def _segment_of_each(problem: Problem, operands: Mapping[str, Any], namespace: Namespace) -> Any:
    """The segment of each row; their number stands for none."""
    count, module = problem.num_segments, namespace.module
    cut = operands[problem.cut_by.name]
    if problem.cut_by.role is Role.OFFSETS:
        places = namespace.counting(cut, problem.num_inputs)
        cut = module.searchsorted(cut, places, side="right") - 1
    inside = (cut >= 0) & (cut < count)
    return module.where(inside, cut, namespace.full(cut, count, ()))
