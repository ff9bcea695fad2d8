"""The ops that torch's dispatcher knows: for compile, export, fake and meta tensors, and modes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..core.declare import Op

if TYPE_CHECKING:
    from .operations import Operation

_library = torch.library.Library("pullback", "DEF")


def define(operation: Operation) -> tuple[Any, Any]:
    """Register both directions of an operation; returns their overloads."""
    family = operation.family
    forward = _define(operation, family.forward, operation.launch, operation.count)
    held = 1 + len(family.saves)
    backward = _define(operation, family.backward, operation.launch_backward, held)
    _differentiate_forward(operation)
    _differentiate_backward(operation, held)
    return forward, backward


def _define(operation: Operation, op: Op, launch: Any, count: int) -> Any:
    family, name = operation.family, operation.names[op.direction]
    _library.define(family.schema(op, name), tags=(torch.Tag.pt2_compliant_tag,))

    def on_cpu(*arguments: Any) -> Any:
        return launch(_hashable(arguments[count:]), *arguments[:count])

    def on_cuda(*arguments: Any) -> Any:
        return family.by_function(op, _hashable(arguments[count:]), *arguments[:count])

    def fake(*arguments: Any) -> Any:
        results = family.empty(op, arguments[count:], *arguments[:count])
        return results[0] if len(results) == 1 else results

    _library.impl(name, on_cpu, "CPU")
    _library.impl(name, on_cuda, "CUDA")
    torch.library.register_fake(f"pullback::{name}", fake, lib=_library)
    return getattr(torch.ops.pullback, name).default


def _hashable(params: tuple[Any, ...]) -> tuple[Any, ...]:
    """Parameters as they were before the dispatcher made lists of tuples."""
    return tuple(tuple(v) if isinstance(v, list) else v for v in params)


def _differentiate_forward(operation: Operation) -> None:
    family, count = operation.family, operation.count

    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        tensors = inputs[:count]
        ctx.params = family.backward_parameters(_hashable(inputs[count:]), tensors[0])
        ctx.arguments = len(inputs)
        ctx.save_for_backward(*operation.saved(tensors, output))

    def backward(ctx: Any, grad: Tensor) -> Any:
        result = operation.pull(ctx.params, grad, *ctx.saved_tensors)
        results = result if isinstance(result, tuple) else (result,)
        return (*results, *[None] * (ctx.arguments - len(results)))

    name = f"pullback::{operation.names['forward']}"
    torch.library.register_autograd(name, backward, setup_context=setup_context, lib=_library)


def _differentiate_backward(operation: Operation, held: int) -> None:
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.params = _hashable(inputs[held:])
        ctx.save_for_backward(*inputs[:held])

    def backward(ctx: Any, *outer: Tensor) -> Any:
        grad, *saves = ctx.saved_tensors
        grads = operation.pull_twice(ctx.params, tuple(saves), grad, *outer)
        return (*grads, *[None] * len(ctx.params))

    name = f"pullback::{operation.names['backward']}"
    torch.library.register_autograd(name, backward, setup_context=setup_context, lib=_library)
