"""The shortest way from plain NumPy arrays to the kernels of a segment op.

As in :mod:`.packed`: where rows and ids are packed arrays apart from each other, only the ids are
looked at. What is different, an id that must not be among them too, goes the long way.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..core.declare import Type
from ..core.problem import Problem
from ..memory.view import DTYPES, address_of

_IDS = {np.dtype(np.int32): "i32", np.dtype(np.int64): "i64"}
# Of an id; a narrower one, of which there are as many, does not reach as far.
_WIDEST = 8


def are_tables(problem: Problem) -> bool:
    """Whether the operands are rows beside the ids, and there are some of each."""
    operands = (*problem.reads, *problem.writes)
    if any(0 in problem.shape_of(o.name) for o in operands):
        return False
    return all(o is problem.cut_by or o.type is Type.ELEMENT for o in operands)


def packed_run(problem: Problem, runner: Any, threads: int) -> Any:
    """``run(operands, workspace=None)`` of packed operands; False, with nothing done, of others.

    It is written out: as loops over the operands a call took 13 us instead of 8.
    """
    dtype = DTYPES[problem.element]
    item = dtype.itemsize
    names = [o.name for o in (*problem.reads, *problem.writes)]
    cut, rows = problem.cut_by.name, [n for n in names if n != problem.cut_by.name]
    shapes = {n: problem.shape_of(n) for n in names}
    strides: dict[str, tuple[int, ...]] = {n: (shapes[n][-1] * item, item) for n in rows}
    sizes = {n: item * int(np.prod(shapes[n])) for n in rows}
    sizes[cut] = _WIDEST * shapes[cut][0]
    launches = _Launches(problem, runner, threads, names, strides)
    lines = [
        "try:",
        *(f"    {n} = operands[{n!r}]" for n in names),
        "except KeyError: return False",
        f"if type({cut}) is not ndarray or {cut}.shape != shape_{cut}: return False",
        f"kind = kinds.get({cut}.dtype)",
        f"if kind is None or {cut}.strides != ({cut}.itemsize,): return False",
    ]
    lines += [
        f"if type({n}) is not ndarray or {n}.dtype is not dtype or {n}.shape != shape_{n} "
        f"or {n}.strides != strides_{n}: return False"
        for n in rows
    ]
    lines += [f"at_{n} = address_of({n})" for n in names]
    low_bits = " | ".join(f"at_{n}" for n in rows)
    lines.append(f"if ({low_bits}) & {item - 1} or at_{cut} % {cut}.itemsize: return False")
    inputs = [o.name for o in problem.reads]
    outputs = [n for n in names if n not in inputs]
    for k, out in enumerate(outputs):
        lines.append(f"if not {out}.flags.writeable: return False")
        lines += [_unless_apart(out, n, sizes) for n in (*inputs, *outputs[k + 1 :])]
    needed = runner.workspace_size
    lines += ["at = size = 0", "if workspace is not None:"]
    lines += [f"    {line}" for line in _taking_workspace(needed, names, sizes)]
    if needed:
        lines += [
            "else:",
            f"    workspace = empty({-(-needed // 8)}, int64)",
            f"    at, size = address_of(workspace), {needed}",
        ]
    addresses = ", ".join(f"at_{n}" for n in names)
    lines += [
        f"if are_wrong(at_{cut}, {cut}.itemsize, {shapes[cut][0]}, kind, {threads}, {cut}): "
        "return False",
        f"program(kind)(({addresses}), (operands, workspace), at, size)",
        "return True",
    ]
    tools = {
        "ndarray": np.ndarray,
        "empty": np.empty,
        "int64": np.int64,
        "address_of": address_of,
        "kinds": _IDS,
        "dtype": dtype,
        "are_wrong": runner.are_wrong,
        "program": launches.program,
        **{f"shape_{n}": shape for n, shape in shapes.items()},
        **{f"strides_{n}": held for n, held in strides.items()},
    }
    made: dict[str, Any] = {}
    exec("def run(operands, workspace=None):\n    " + "\n    ".join(lines), tools, made)
    return made["run"]


def _unless_apart(name: str, other: str, sizes: dict[str, int]) -> str:
    return (
        f"if at_{other} < at_{name} + {sizes[name]} and at_{name} < at_{other} + {sizes[other]}: "
        "return False"
    )


def _taking_workspace(needed: int, names: list[str], sizes: dict[str, int]) -> list[str]:
    """Lines that take the caller's workspace, if it is packed and apart from the operands."""
    apart = [f"if at_{n} < at + size and at < at_{n} + {sizes[n]}: return False" for n in names]
    return [
        "if type(workspace) is not ndarray: return False",
        "at, size, flags = address_of(workspace), workspace.nbytes, workspace.flags",
        f"if size < {needed} or at % 8 or not flags.c_contiguous or not flags.writeable: "
        "return False",
        *apart,
    ]


class _Launches:
    """The programs of a segment op for packed operands, by the type of the ids."""

    def __init__(
        self,
        problem: Problem,
        runner: Any,
        threads: int,
        names: list[str],
        strides: dict[str, tuple[int, ...]],
    ):
        self._runner, self._threads, self._names = runner, threads, names
        self._cut, self._strides = problem.cut_by.name, strides
        self._runs: dict[str, Any] = {}

    def program(self, kind: str) -> Any:
        """``run`` of the program for ids of this type, made when they are first met."""
        run = self._runs.get(kind)
        if run is None:
            by = {self._cut: (4 if kind == "i32" else 8,)}
            held = {n: by[n] if n in by else self._strides[n] for n in self._names}
            launch = self._runner.launch_for(held, {self._cut: kind}, self._threads)
            run = self._runs[kind] = launch.program.run
        return run
