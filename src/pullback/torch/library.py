"""The ops that torch's dispatcher knows: for compile, export, fake and meta tensors, and modes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from .autograd import Rule, backward_rules, forward_rules, hashable
from .forms import Form, unpacked

if TYPE_CHECKING:
    from .operations import Operation

_library = torch.library.Library("pullback", "DEF")


def define(operation: Operation) -> tuple[Any, Any]:
    """Register both directions of an operation; returns their overloads."""
    forward = _define(operation, operation.forward, operation.launch)
    if operation.backward is None:
        return forward, None
    backward = _define(operation, operation.backward, operation.launch_backward)
    _differentiate(operation, operation.forward, forward_rules(operation))
    _differentiate(operation, operation.backward, backward_rules(operation))
    return forward, backward


def _differentiate(operation: Operation, form: Form, rules: tuple[Rule, Rule]) -> None:
    setup_context, backward = rules
    name = f"pullback::{_name(operation, form)}"
    torch.library.register_autograd(name, backward, setup_context=setup_context, lib=_library)


def _name(operation: Operation, form: Form) -> str:
    return form.op.name + operation.overload


def _define(operation: Operation, form: Form, launch: Any) -> Any:
    name, count = _name(operation, form), len(form.reads)
    _library.define(form.schema(name), tags=(torch.Tag.pt2_compliant_tag,))

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
