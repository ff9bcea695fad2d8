"""The autograd Functions of an operation: a direct one for plain tensors, two that compose."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd import Function

from ..core.declare import Role
from ..errors import UnsupportedError
from .forms import Form, Parameters, as_tuple, unpacked
from .written import make_direct_backward, make_direct_forward

if TYPE_CHECKING:
    from .operations import Operation

Rule = Callable[..., Any]


def _made(name: str, **methods: Callable[..., Any]) -> type[Function]:
    # Made by a call: the node of the graph takes its name when the class is made.
    held = {n: staticmethod(m) for n, m in methods.items()}
    return types.new_class(f"Pullback_{name}", (Function,), exec_body=lambda b: b.update(held))


def make_direct(operation: Operation, plain: frozenset[Any]) -> type[Function]:
    """The Function for plain CPU tensors outside of every transform: (params, *tensors)."""
    backward = make_direct_backward(operation, plain)
    made = _made(operation.kind, forward=make_direct_forward(operation), backward=backward)
    # The engine calls it by this name, and asks for nothing that Python's apply would (1 µs).
    made._backward_cls.apply = backward  # type: ignore[attr-defined]
    return made


def make_whole(operation: Operation) -> type[Function]:
    """The Function whose gradient is that of the formula in torch's ops, by all numbers."""
    numbers = operation.numbers

    def forward(ctx: Any, params: Parameters, *tensors: Tensor) -> Any:
        ctx.params = params
        ctx.save_for_backward(*tensors)
        return operation.launch(params, *tensors)

    def backward(ctx: Any, *grads: Tensor) -> Any:
        tensors = ctx.saved_tensors

        def again(*varying: Tensor) -> tuple[Tensor, ...]:
            held = list(tensors)
            for k, t in zip(numbers, varying, strict=True):
                held[k] = t
            return as_tuple(operation.reference(*held, *ctx.params))

        shares = torch.func.vjp(again, *[tensors[k] for k in numbers])[1](grads)
        found = dict(zip(numbers, shares, strict=True))
        return None, *[found.get(k) for k in range(len(tensors))]

    return _made(operation.kind, forward=forward, backward=backward)


def hashable(params: tuple[Any, ...]) -> Parameters:
    """Parameters as they were before a dispatcher made lists of tuples."""
    return tuple(tuple(v) if isinstance(v, list) else v for v in params)


def forward_rules(operation: Operation) -> tuple[Rule, Rule]:
    """What a forward of (*tensors, *params) keeps, and its backward."""
    count, path = operation.count, operation.path

    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        tensors, results = inputs[:count], as_tuple(output)
        ctx.params = operation.backward_parameters(hashable(inputs[count:]), tensors)
        ctx.arguments = len(inputs)
        ctx.save_for_backward(*path.saved(tensors, results))
        if path.constant_outputs:
            ctx.mark_non_differentiable(*[results[k] for k in path.constant_outputs])

    def backward(ctx: Any, *grads: Tensor) -> Any:
        tensors = path.joined(path.wanted(grads), ctx.saved_tensors)
        found = path.by_operand(operation.pull(ctx.params, *tensors))
        return (*found, *[None] * (ctx.arguments - count))

    return setup_context, backward


def backward_rules(operation: Operation) -> tuple[Rule, Rule]:
    """The same for a backward that is differentiated itself."""
    assert operation.backward is not None
    count = len(operation.backward.reads)

    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.params = hashable(inputs[count:])
        ctx.save_for_backward(*inputs[:count])

    def backward(ctx: Any, *outer: Tensor) -> Any:
        found = operation.pull_twice(ctx.params, ctx.saved_tensors, outer)
        return (*found, *[None] * len(ctx.params))

    return setup_context, backward


def make_composable(operation: Operation, form: Form, rules: tuple[Rule, Rule]) -> type[Function]:
    """One direction under torch.func: (*tensors, *params)."""
    count = len(form.reads)

    def forward(*arguments: Any) -> Any:
        return operation.base(form, arguments[count:], *arguments[:count])

    def vmap(info: Any, in_dims: tuple[Any, ...], *arguments: Any) -> Any:
        return _over_batch(operation, form, info.batch_size, in_dims, arguments)

    setup_context, backward = rules
    methods = {"setup_context": setup_context, "backward": backward, "vmap": vmap}
    return _made(form.op.name, forward=forward, **methods)


def _over_batch(
    operation: Operation,
    form: Form,
    size: int,
    in_dims: tuple[Any, ...],
    arguments: tuple[Any, ...],
) -> Any:
    """A batch of calls as one call."""
    count = len(form.reads)
    batches = list(zip(arguments[:count], in_dims[:count], strict=True))
    call = form.batched(arguments[count:], size, batches)
    is_forward, tensors = form.op.direction == "forward", call.tensors
    if call.by_ids:
        held = {o.name: t for o, t in zip(form.reads, tensors, strict=True)}
        held[form.op.names(Role.IDS)[0]] = tensors[form.cut]  # type: ignore[index]
        operation = _by_ids(operation)
        cut = operation.forward if is_forward else operation.backward
        tensors = [held[o.name] for o in cut.reads]  # type: ignore[union-attr]
    results = as_tuple((operation if is_forward else operation.pull)(call.parameters, *tensors))
    finished = [call.finish(o, t) for o, t in zip(form.writes, results, strict=True)]
    return unpacked(finished), unpacked([call.dim] * len(finished))


def _by_ids(operation: Operation) -> Operation:
    """The same operation on rows that ids cut."""
    form, of = operation.forward, operation.of
    by_offsets = form.reads[form.cut].name  # type: ignore[index]
    if not of.usual:
        raise UnsupportedError(
            f"{by_offsets}: expected the same offsets for every example of a batch; "
            f"{operation.name} does not take ids instead"
        )
    given = {*operation.given, *of.usual} - {by_offsets}
    return of.operation(of.ordered(given), operation.asked)
