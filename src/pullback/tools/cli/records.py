"""Options that choose among the formula records of an op: its parameters and optional operands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import click

from ...core.catalog import catalog
from ...core.declare import Op
from ..choices import selectors
from .encoding import in_ascii


class RecordOptions(click.Command):
    """Has an option for everything that selects a record of some op in the catalog."""

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """The command's own options, then those of the ops."""
        own = super().get_params(ctx)
        known = {p.name for p in own}
        made: list[click.Parameter] = [o for o in _options() if o.name not in known]
        return [*own[:-1], *made, *own[-1:]]


def _options() -> list[click.Option]:
    """Each as the first op that has it describes it; of several values all there are."""
    values: dict[str, list[Any]] = {}
    docs: dict[str, str] = {}
    for op in catalog():
        for name, choices in selectors(op).items():
            held = values.setdefault(name, [])
            held += [v for v in choices if v not in held]
            docs.setdefault(name, _doc(op, name))
    found = []
    for name, every in values.items():
        how: dict[str, Any] = {"is_flag": True}
        if set(every) != {False, True}:
            how = {"type": click.Choice([str(v) for v in every])}
        word = f"--{name.removeprefix('+').replace('_', '-')}"
        doc = f"With this operand: {docs[name]}" if name[0] == "+" else docs[name]
        found.append(click.Option([word, _called(name)], default=None, help=in_ascii(doc), **how))
    return found


def _doc(op: Op, name: str) -> str:
    if name[0] == "+":
        return op.operand(name[1:]).doc
    parameter = op.parameter(name)
    return parameter.doc if parameter else "What cuts rows into segments."


def _called(name: str) -> str:
    """The name under which a choice reaches the command."""
    return f"with_{name[1:]}" if name[0] == "+" else f"by_{name}"


def taken(op: Op, given: Mapping[str, Any]) -> dict[str, Any] | None:
    """What was chosen, of an op; None where it has no such choice."""
    wanted = {n: v for n, v in given.items() if v is not None and v is not False}
    own = {_called(name): (name, values) for name, values in selectors(op).items()}
    found = {}
    for name, value in wanted.items():
        if name not in own:
            return None
        choice, values = own[name]
        found[choice] = next((v for v in values if str(v) == str(value)), None)
        if found[choice] is None:
            return None
    return found


def choices_of(ops: Sequence[Op], given: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The choice of every op that has what was chosen, by its name.

    Raises
    ------
    click.ClickException
        If there is none.
    """
    found = {op.name: taken(op, given) for op in ops}
    kept = {name: choice for name, choice in found.items() if choice is not None}
    if not kept:
        words = [f"--{n.split('_', 1)[1].replace('_', '-')}" for n, v in given.items() if v]
        raise click.ClickException(
            f"nothing to run: no op that is asked for has {', '.join(words)}"
        )
    return kept
