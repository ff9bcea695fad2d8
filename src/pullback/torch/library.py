"""The ops that torch's dispatcher knows: for compile, export, fake and meta tensors, and modes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from .autograd import Rule, backward_rules, forward_rules, hashable
from .forms import Form, Parameters, unpacked

if TYPE_CHECKING:
    from .operations import Operation

_library = torch.library.Library("pullback", "DEF")


# What keeps inductor from capturing an op into a CUDA graph; torch before 2.9 has no such tag.
_UNSAFE: Any = getattr(torch.Tag, "cudagraph_unsafe", None)


class Registered:
    """One direction of an operation in torch's library.

    A tag belongs to an op, and whether a call waits for the device to parameters. So ids that are
    looked at and ids that are not have an op each.

    Attributes
    ----------
    usual
        The op for every call but those of ``unchecked``.
    unchecked
        The op for calls that do not wait, of a form whose calls may; else None.
    """

    def __init__(self, operation: Operation, form: Form, launch: Any) -> None:
        self._form = form
        name = form.op.name + operation.overload
        self.usual = _define(name, form, launch, form.is_segmented)
        self._names, self.unchecked = [name], None
        if form.may_drop:
            # No overload: torch 2.13 aborts at exit over two with the same arguments and a third.
            name = f"{form.op.name}_unchecked{operation.overload}"
            self.unchecked = _define(name, form, launch, False)
            self._names.append(name)

    def chosen(self, params: Parameters) -> Any:
        """The op for a call."""
        if self.unchecked is None or self._form.waits(params):
            return self.usual
        return self.unchecked

    def differentiate(self, rules: tuple[Rule, Rule]) -> None:
        """Register derivatives."""
        setup_context, backward = rules
        for name in self._names:
            torch.library.register_autograd(
                f"pullback::{name}", backward, setup_context=setup_context, lib=_library
            )


def define(operation: Operation) -> tuple[Registered, Registered | None]:
    """Register both directions of an operation."""
    forward = Registered(operation, operation.forward, operation.launch)
    if operation.backward is None:
        return forward, None
    backward = Registered(operation, operation.backward, operation.launch_backward)
    forward.differentiate(forward_rules(operation))
    backward.differentiate(backward_rules(operation))
    return forward, backward


def _define(name: str, form: Form, launch: Any, waits: bool) -> Any:
    count = len(form.reads)
    tags = (torch.Tag.pt2_compliant_tag, *((_UNSAFE,) if waits and _UNSAFE else ()))
    _library.define(form.schema(name), tags=tags)

    def on_cpu(*arguments: Any) -> Any:
        return launch(hashable(arguments[count:]), *arguments[:count])

    def on_cuda(*arguments: Any) -> Any:
        return form.by_function(hashable(arguments[count:]), *arguments[:count])

    def fake(*arguments: Any) -> Any:
        return unpacked(form.empty(arguments[count:], *arguments[:count]))

    _library.impl(name, on_cpu, "CPU")
    _library.impl(name, on_cuda, "CUDA")
    torch.library.register_fake(f"pullback::{name}", fake, lib=_library)
    base, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.pullback, base), overload or "default")
