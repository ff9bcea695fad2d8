"""Docstrings of the functions, written from the rows of the catalog."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from ..core.declare import REQUIRED, Op, Operand, Parameter, Type

_TYPES = {
    Type.ELEMENT: "array",
    Type.BOOL: "array of bool",
    Type.INDEX: "array of int32 or int64",
    Type.STATE: "array, float64 if it is one",
}


def _operand(operand: Operand, is_spared: bool) -> tuple[str, str]:
    optional = ", optional" if operand.optional or is_spared else ""
    doc = f"{operand.doc} Checked if it is given, but not read." if is_spared else operand.doc
    return f"{operand.name} : {_TYPES[operand.type]}{optional}", doc


def _parameter(parameter: Parameter) -> tuple[str, str]:
    hint = parameter.kind.hint
    if parameter.choices:
        hint = "{" + ", ".join(map(_quoted, parameter.choices)) + "}"
    default = "" if parameter.default is REQUIRED else f", default {_quoted(parameter.default)}"
    return f"{parameter.name} : {hint}{default}", parameter.doc


def _quoted(value: object) -> str:
    return f'"{value}"' if isinstance(value, str) else str(value)


def _out(op: Op) -> tuple[str, str]:
    if len(op.writes) == 1:
        return "out : array, optional", "Where to write; may be an input of the same shape."
    listed = ", ".join(op.outputs)
    return "out : tuple of arrays, optional", f"Where to write {listed}; None makes a new one."


def entries(names: Iterator[str], op: Op) -> Iterator[str]:
    """The lines on the arguments of an op's function, in the order it takes them."""
    operands, parameters = {o.name: o for o in op.reads}, {p.name: p for p in op.parameters}
    aliases = {p.alias: p for p in op.parameters if p.alias and p.alias not in parameters}
    for name in names:
        if name == "out":
            head, doc = _out(op)
        elif name in operands:
            head, doc = _operand(operands[name], name in op.spared)
        elif name in aliases:
            same = aliases[name]
            head, doc = f"{name} : {same.kind.hint}, optional", f"Another name for {same.name}."
        else:
            head, doc = _parameter(parameters[name])
        yield head
        yield from textwrap.wrap(doc, 92, initial_indent="    ", subsequent_indent="    ")


def docstring(op: Op, names: Iterator[str]) -> str:
    """The docstring of an op's function, NumPy style, which takes arguments of these names."""
    what = op.kind if op.direction == "forward" else f"Backward of {op.kind}"
    lines = [f"{what}: {op.formula}.", "", "Parameters", "----------", *entries(names, op)]
    lines += ["", "Returns", "-------"]
    for operand in op.writes:
        lines += [f"{operand.name} : array", f"    {operand.doc}"]
    notes = [f"Saves: {', '.join(sorted(op.needs.difference(op.spared))) or 'none'}."]
    if op.edges:
        notes.append(f"Edges: {op.edges}.")
    lines += ["", "Notes", "-----", *notes]
    if op.text.example:
        call, shown = op.text.example
        lines += ["", "Examples", "--------", ">>> import numpy as np, pullback as pb"]
        lines += [f">>> pb.{call}", *shown.splitlines()]
    return "\n".join(lines) + "\n"
