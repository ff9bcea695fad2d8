"""How tensors get from a forward to its backward, and gradients back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from ..core.declare import Role, Type
from ..core.pair import Pair
from ..formulas.record import repeats
from .forms import Form, as_tuple


def backward_form(pair: Pair, forward: Form) -> Form | None:
    """The backward of a form, with what it has of the operands that may be left out."""
    op = pair.backward
    if op is None:
        return None
    made = {o.name for o in forward.writes}
    there = {o.name for o in forward.reads} | made
    there |= {n for n, output in pair.cotangents.items() if output in made}
    given = frozenset(n for n in op.optional if n in there)
    form = Form(op, given, forward.flags, forward.parameters)
    # What no formula reads of the forward's operands is not kept for it.
    unread = {
        o.name
        for o in form.reads
        if o.optional
        and o.role in (Role.ELEMENT, Role.ROW)
        and not form.reads_names & {o.symbol, f"{o.symbol}_before"}
        and not any(w.asked_by == o.name for w in op.writes)
    }
    return Form(op, given - unread, forward.flags, forward.parameters) if unread else form


class Path:
    """How tensors get from a forward to its backward and back, by their places.

    Attributes
    ----------
    is_unary
        Whether one operand becomes one output, and what is saved comes in this order.
    has_policy
        Whether the derivative is the backward's to say: it has a choice that the forward does not
        have, as at ties, or the forward is found by trial, which no derivative goes through.
    variables, variable_names
        Operands of the forward that gradients flow to, in the order of the backward's results.
    differentiable
        Outputs of the forward by which the backward takes a gradient.
    grads
        Operands of the backward that are these gradients.
    saved_outputs
        Operands of the backward that are outputs of the forward.
    lost
        Those among them by which it takes no gradient, with the output.
    differentiated
        Operands of the backward that have a derivative.
    constants
        The other operands of the forward, with their place in the backward; None if one is missing.
    """

    def __init__(self, pair: Pair, forward: Form, backward: Form | None) -> None:
        self.has_policy = self.is_unary = False
        self.constant_outputs = tuple(range(len(forward.writes)))
        self.differentiable: tuple[int, ...] = ()
        self.sources: tuple[int, ...] = ()
        self.places: tuple[int | None, ...] = (None,) * len(forward.reads)
        if backward is None:
            return
        own = {p.name for p in pair.forward.parameters}
        chooses = any(p.choices and p.name not in own for p in backward.parameters)
        self.has_policy = chooses or repeats(pair.forward.record())
        inputs = [o.name for o in forward.reads]
        outputs = [o.name for o in forward.writes]
        reads = [o.name for o in backward.reads]
        source = {gradient: operand for operand, gradient in pair.gradients.items()}
        self.variable_names = tuple(source[o.name] for o in backward.writes)
        self.variables = tuple(inputs.index(n) for n in self.variable_names)
        self.grads = tuple(k for k, n in enumerate(reads) if n in pair.cotangents)
        self.differentiable = tuple(outputs.index(pair.cotangents[reads[k]]) for k in self.grads)
        self.constant_outputs = tuple(
            k for k in range(len(outputs)) if k not in self.differentiable
        )
        # Where each save comes from: an operand, or an output behind them.
        held = [*inputs, *outputs]
        kept = [k for k in range(len(reads)) if k not in self.grads]
        self.sources = tuple(held.index(reads[k]) for k in kept)
        self.saved_outputs = {
            k: s - len(inputs) for k, s in zip(kept, self.sources, strict=True) if s >= len(inputs)
        }
        self.lost = {k: o for k, o in self.saved_outputs.items() if o not in self.differentiable}
        self.differentiated = tuple(
            k for k, o in enumerate(backward.reads) if o.type in (Type.ELEMENT, Type.STATE)
        )
        self.order = tuple([*self.grads, *kept].index(k) for k in range(len(reads)))
        self.in_order = self.order == tuple(range(len(reads)))
        self.is_unary = (
            len(inputs) == len(outputs) == len(self.grads) == 1
            and self.in_order
            and list(self.sources) == sorted(self.sources)
        )
        fixed = {k: n for k, n in enumerate(inputs) if k not in self.variables}
        self.constants: dict[int, int] | None = None
        if all(n in reads for n in fixed.values()):
            self.constants = {k: reads.index(n) for k, n in fixed.items()}
        self.places = tuple(
            self.variables.index(k) if k in self.variables else None for k in range(len(inputs))
        )

    def saved(self, tensors: Sequence[Tensor], results: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """What the backward needs of the forward's operands and results."""
        held = (*tensors, *results)
        return tuple([held[k] for k in self.sources])

    def joined(self, grads: Sequence[Tensor], saves: Sequence[Tensor]) -> Sequence[Tensor]:
        """The operands of the backward in order."""
        held = (*grads, *saves)
        return held if self.in_order else [held[k] for k in self.order]

    def wanted(self, grads: Sequence[Tensor]) -> Sequence[Tensor]:
        """The gradients that the backward takes, of those by every output."""
        return [grads[k] for k in self.differentiable]

    def by_operand(self, results: Any) -> tuple[Any, ...]:
        """Results of the backward in the order of the forward's operands."""
        found = as_tuple(results)
        return tuple([None if k is None else found[k] for k in self.places])
