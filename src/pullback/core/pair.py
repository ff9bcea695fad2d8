"""An op beside its backward: what gradients flow to, and what the backward reads of the forward.

Names tell: the gradient by ``y`` is ``dy``, the one by ``input`` is ``d_input``.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property

from .catalog import OPS, find
from .declare import Op, Operand, Parameter


def gradient_of(name: str, among: Collection[str]) -> str | None:
    """The one of some names whose gradient a name stands for."""
    return next((n for n in (name.removeprefix("d_"), name[1:]) if n != name and n in among), None)


@dataclass(frozen=True)
class Pair:
    """The two directions of a kind; ``backward`` is None where no gradient is defined."""

    forward: Op
    backward: Op | None

    @cached_property
    def gradients(self) -> dict[str, str]:
        """Operands of the forward that gradients flow to, each with its output of the backward."""
        if self.backward is None:
            return {}
        found = {gradient_of(n, self.forward.inputs): n for n in self.backward.outputs}
        return {name: found[name] for name in self.forward.inputs if name in found}

    @cached_property
    def cotangents(self) -> dict[str, str]:
        """Operands of the backward that are gradients by an output of the forward, with it."""
        if self.backward is None:
            return {}
        named = ((n, gradient_of(n, self.forward.outputs)) for n in self.backward.inputs)
        return {name: output for name, output in named if output is not None}

    @cached_property
    def saves(self) -> tuple[Operand, ...]:
        """What the backward reads beside them: operands and outputs of the forward."""
        if self.backward is None:
            return ()
        return tuple(o for o in self.backward.reads if o.name not in self.cotangents)

    @cached_property
    def parameters(self) -> tuple[Parameter, ...]:
        """The parameters of both: those of the forward, then those the backward adds.

        The shape, which a backward asks for where none of its operands tells it, is no choice of
        the caller and not among them.
        """
        held = {p.name: p for p in self.forward.parameters}
        for p in self.backward.parameters if self.backward else ():
            if p.name not in ("shape", "num_inputs"):
                held.setdefault(p.name, p)
        return tuple(held.values())

    def variables(self, given: Collection[str] = ()) -> tuple[str, ...]:
        """Operands that gradients flow to, with those that may be left out and are given."""
        held = {o.name for o in self.forward.reads if not o.optional or o.name in given}
        return tuple(n for n in self.gradients if n in held)

    def is_linear(self, given: Collection[str] = ()) -> bool:
        """Whether the forward is linear in its variables: the backward needs none of them."""
        varying = {*self.variables(given), *self.forward.outputs}
        return not any(
            o.name in varying and (not o.optional or o.name in given) for o in self.saves
        )


def pair_of(kind: str) -> Pair:
    """The pair of a kind."""
    return Pair(find(kind, "forward"), OPS.get(f"{kind}_backward"))
