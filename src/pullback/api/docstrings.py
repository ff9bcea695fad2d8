"""Docstrings of the functions, written from the rows of the catalog."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator

from ..core.declare import REQUIRED, Op, Operand, Parameter, Role, Type

_TYPES = {
    Type.BOOL: "array of bool",
    Type.INDEX: "array of int32 or int64",
    Type.STATE: "array, may be float64",
}


def _operand(operand: Operand, is_spared: bool, array: str) -> tuple[str, str]:
    kind = array if operand.type is Type.ELEMENT else _TYPES[operand.type]
    optional = ", optional" if is_spared or (operand.optional and "|" not in kind) else ""
    doc = f"{operand.doc} Checked if given, but not read." if is_spared else operand.doc
    return f"{operand.name} : {kind}{optional}", doc


def _parameter(parameter: Parameter, hint: str) -> tuple[str, str]:
    if parameter.choices and hint != "bool":
        hint = "{" + ", ".join(map(_quoted, parameter.choices)) + "}"
    default = "" if parameter.default is REQUIRED else f", default {_quoted(parameter.default)}"
    return f"{parameter.name} : {hint}{default}", parameter.doc


def _quoted(value: object) -> str:
    return f'"{value}"' if isinstance(value, str) else str(value)


def _out(op: Op) -> tuple[str, str]:
    if len(op.writes) == 1:
        is_cut = any(o.role is Role.IDS for o in op.reads)
        own = "must not be an input" if is_cut else "may be an input of the same shape"
        return "out : array, optional", f"Buffer for the result; {own}."
    listed = ", ".join(op.outputs)
    return "out : tuple of arrays, optional", f"Buffers for {listed}; None allocates one."


def _hint(parameter: Parameter) -> str:
    return parameter.kind.hint


def entries(
    names: Iterator[str],
    op: Op,
    array: str = "array",
    hint_of: Callable[[Parameter], str] = _hint,
) -> Iterator[str]:
    """The lines on the arguments of an op's function, in the order it takes them.

    ``array`` is what its elements come in, and ``hint_of`` says what a parameter may be.
    """
    operands, parameters = {o.name: o for o in op.reads}, {p.name: p for p in op.parameters}
    aliases = {p.alias: p for p in op.parameters if p.alias and p.alias not in parameters}
    for name in names:
        if name in operands:
            # A number may stand for an array of them.
            number = f"{hint_of(parameters[name])} | " if name in parameters else ""
            head, doc = _operand(operands[name], name in op.spared, number + array)
        elif name in aliases:
            same = aliases[name]
            head, doc = f"{name} : {same.kind.hint}, optional", f"Another name for {same.name}."
        elif name in parameters:
            head, doc = _parameter(parameters[name], hint_of(parameters[name]))
        else:
            head, doc = _out(op)
        yield head
        yield from textwrap.wrap(doc, 92, initial_indent="    ", subsequent_indent="    ")


def docstring(op: Op, names: Iterator[str]) -> str:
    """The docstring of an op's function, NumPy style, which takes arguments of these names."""
    what = op.kind if op.direction == "forward" else f"Backward of {op.kind}"
    lines = [f"{what}: {op.formula}.", "", "Parameters", "----------", *entries(names, op)]
    lines += ["", "Returns", "-------"]
    for operand in op.writes:
        lines += [f"{operand.name} : array of the same kind as the input", f"    {operand.doc}"]
    notes = [f"Saves: {', '.join(sorted(op.needs.difference(op.spared))) or 'none'}."]
    if op.edges:
        notes.append(f"Edge cases: {op.edges}.")
    lines += ["", "Notes", "-----", *notes]
    if op.text.example:
        call, shown = op.text.example
        lines += ["", "Examples", "--------", ">>> import numpy as np, pullback as pb"]
        lines += [f">>> pb.{call}", *shown.splitlines()]
    return "\n".join(lines) + "\n"
