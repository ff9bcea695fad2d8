"""The shortest way from plain NumPy arrays to a kernel.

A repeated call on small arrays is all overhead. Where every operand is a C-ordered ndarray of the
plan's own dtype and shape, a state of float64, apart from the others, there is nothing to find out:
the launch is the one made for packed operands. Positions are int64 and are looked at before it
runs. Whatever is different goes the long way, which also says what is wrong.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..core.declare import Operand, Role, Type
from ..core.problem import Problem
from ..cpu.array_words import MOST_AXES, Expected, expected_words, fields_are_known
from ..memory.view import DTYPES, address_of
from .packed_segments import are_tables, packed_run


def _never(operands: dict[str, Any], workspace: Any = None) -> bool:
    """The call of a plan that has no short way."""
    return False


class PackedCall:
    """A plan's launch for packed operands.

    ``run(operands)`` runs it if the operands are as expected; if not, it is False and nothing has
    been done. Operands with one element for every row have the shape ``rows``, or that of the
    problem with the op's axes at length 1. Of a segment op it is ``run(operands, workspace)``, too.
    """

    __slots__ = ("run", "threads")

    def __init__(
        self,
        problem: Problem,
        runner: Any,
        threads: int,
        on_gpu: bool,
        outputs: Sequence[str],
        rows: tuple[int, ...] | None = None,
    ):
        self.threads = threads
        self.run: Callable[..., bool] = _never
        if on_gpu or 0 in problem.shape:
            return
        if problem.is_segmented:
            if are_tables(problem) and len(outputs) == len(problem.writes):
                self.run = packed_run(problem, runner, threads)
            return
        operands = [*problem.reads, *(o for o in problem.writes if o.name in outputs)]
        if any(o.type is Type.INDEX and o not in problem.positions for o in operands):
            return
        dtypes = {o.name: _dtype(problem, o) for o in operands}
        shapes = {n: problem.shape_of(n) for n in dtypes}
        strides = {n: _c_strides(shapes[n], dtype.itemsize) for n, dtype in dtypes.items()}
        own = {Type.STATE: "f64", Type.INDEX: "i64"}
        types = tuple((o.name, own[o.type]) for o in operands if o.type in own)
        program = runner.launch_for(strides, threads, types).program
        if rows is not None:
            for name in (o.name for o in operands if o.role is Role.ROW):
                shapes[name] = rows
                strides[name] = _c_strides(rows, dtypes[name].itemsize)
        self.run = _written_out(problem, program, shapes, strides, dtypes)


def _dtype(problem: Problem, operand: Operand) -> np.dtype:
    if operand.type is Type.BOOL:
        return np.dtype(np.bool_)
    if operand.type is Type.INDEX:
        return np.dtype(np.int64)
    return DTYPES["f64" if operand.type is Type.STATE else problem.element]


def _looks_at(problem: Problem, operand: Operand) -> Callable[[np.ndarray[Any, Any]], bool]:
    """``fine(values)``: whether all elements of an operand name a position, or the one allowed."""
    extent, allowed = problem.extent, problem.constants.get(operand.allows)

    def fine(values: np.ndarray[Any, Any]) -> bool:
        # What is below 0 is far above as an unsigned number: one look at 64 takes 2 microseconds.
        unsigned = values.view(np.uint64)
        if np.maximum.reduce(unsigned, None) < extent:
            return True
        return allowed is not None and bool(((unsigned < extent) | (values == allowed)).all())

    return fine


def _bounds(problem: Problem, operand: Operand) -> tuple[int, int]:
    """What positions must be below, and a value that they may have besides; 0 if there is none."""
    allowed = problem.constants.get(operand.allows)
    if allowed is None or not math.isfinite(allowed):
        return problem.extent, 0
    return problem.extent, int(allowed)


def _written_out(problem: Problem, program: Any, shapes: Any, strides: Any, dtypes: Any) -> Any:
    """The function for one program: as loops over the operands it took 5.5 us instead of 3.4."""
    from ..cpu.builtin import builtin

    names = list(dtypes)
    ranks = [len(shape) for shape in shapes.values()]
    simple = program.is_prompt and not program.workspace
    if simple and max(ranks) <= MOST_AXES and fields_are_known():
        return _by_native_code(problem, program, shapes, strides, dtypes)
    sizes = {n: dtypes[n].itemsize * int(np.prod(shapes[n])) for n in names}
    lines = [
        "try:",
        *(f"    {n} = operands[{n!r}]" for n in names),
        "except KeyError: return False",
    ]
    lines += [
        f"if type({n}) is not ndarray or {n}.dtype is not dtype_{n} or {n}.shape != shape_{n} "
        f"or {n}.strides != strides_{n}: return False"
        for n in names
    ]
    lines += [f"at_{n} = address_of({n})" for n in names]
    for item in {dtype.itemsize for dtype in dtypes.values()} - {1}:
        low_bits = " | ".join(f"at_{n}" for n in names if dtypes[n].itemsize == item)
        lines.append(f"if ({low_bits}) & {item - 1}: return False")
    inputs = [o.name for o in problem.reads]
    outputs = [n for n in names if n not in inputs]
    for k, out in enumerate(outputs):
        lines.append(f"if not {out}.flags.writeable: return False")
        for other in (*inputs, *outputs[k + 1 :]):
            lines.append(
                f"if at_{other} < at_{out} + {sizes[out]} and at_{out} < at_{other} + "
                f"{sizes[other]}: return False"
            )
    lines += [f"if not fine_{o.name}({o.name}): return False" for o in problem.positions]
    addresses = ", ".join(f"at_{n}" for n in names)
    if program.is_prompt and not program.workspace:
        lines.append(f"if run_program({program.address}, {addresses}): run_again({addresses})")
    else:
        lines.append(f"run(({addresses}), operands)")
    lines.append("return True")
    tools = {
        "ndarray": np.ndarray,
        "address_of": address_of,
        "run_program": builtin("run_program"),
        "run_again": program.run_again,
        "run": program.run,
        **{f"fine_{o.name}": _looks_at(problem, o) for o in problem.positions},
        **{f"shape_{n}": shapes[n] for n in names},
        **{f"strides_{n}": strides[n] for n in names},
        **{f"dtype_{n}": dtypes[n] for n in names},
    }
    made: dict[str, Any] = {}
    exec("def run(operands):\n    " + "\n    ".join(lines), tools, made)
    return made["run"]


def _by_native_code(problem: Problem, program: Any, shapes: Any, strides: Any, dtypes: Any) -> Any:
    """The same in one native call, which looks at the arrays and runs: 4.1 us become 1.9."""
    from ..cpu.builtin import on_arrays

    inputs = {o.name for o in problem.reads}
    bounds = {o.name: _bounds(problem, o) for o in problem.positions}
    arrays = [
        Expected(dtypes[n], shapes[n], strides[n], n not in inputs, *bounds.get(n, ()))
        for n in dtypes
    ]
    words = array("q", expected_words(program.address, arrays))
    lines = [
        f"try: found = call({', '.join(f'operands[{n!r}]' for n in dtypes)})",
        "except KeyError: return False",
        "if found == -1: return False",
        "if found: run_again(*[address_of(operands[n]) for n in names])",
        "return True",
    ]
    tools = {
        "call": on_arrays(words.buffer_info()[0]),
        "run_again": program.run_again,
        "address_of": address_of,
        "names": tuple(dtypes),
        "held": (words, program, arrays),
    }
    made: dict[str, Any] = {}
    exec("def run(operands):\n    " + "\n    ".join(lines), tools, made)
    return made["run"]


def _c_strides(shape: tuple[int, ...], item: int) -> tuple[int, ...]:
    strides = []
    step = item
    for n in reversed(shape):
        strides.append(step)
        step *= n
    return tuple(reversed(strides))
