"""What a user would run on a GPU instead, on tensors that are there."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from typing import Any

from ...gpu.device import import_torch
from ..bench.peers import NotOffered, torch_forward, variables
from ..case import Case

Call = Callable[[], object]
Tensors = Mapping[str, Any]


def leaves_of(case: Case, given: Tensors) -> list[Any]:
    """What gradients flow to, numbers of its own where the backward has no use for the operand."""
    torch = import_torch()
    like = next(t for t in given.values() if t.is_floating_point())
    made = []
    for n in variables(case):
        t = given.get(n)
        if t is None:
            t = torch.randn(case.shape, device=like.device).to(like.dtype)
        made.append(t.detach().requires_grad_())
    return made


def called(case: Case, given: Tensors, forward: Callable[..., Any]) -> Call:
    """A call of the forward, or of the backward of a graph that is kept."""
    torch = import_torch()
    if case.op.direction == "forward":
        read = [given[n] for n in variables(case)]
        return lambda: forward(*read)
    gradients = [given[n] for n in case.cotangents if n in given]
    if len(gradients) != 1:
        raise NotOffered("a gradient of several outputs")
    leaves = leaves_of(case, given)
    y = forward(*leaves)
    return lambda: [
        g.contiguous() for g in torch.autograd.grad(y, leaves, gradients[0], retain_graph=True)
    ]


def by_torch(case: Case, given: Tensors) -> Call:
    """torch's own op."""
    return called(case, given, torch_forward(import_torch(), case, given))


def by_compile(case: Case, given: Tensors) -> Call:
    """The same through torch.compile."""
    torch = import_torch()
    forward = torch_forward(torch, case, given)
    torch._dynamo.reset()
    # The graph is kept, so its buffers cannot be given away.
    torch._functorch.config.donated_buffer = False
    return called(case, given, torch.compile(forward, dynamic=False))


def by_liger(case: Case, given: Tensors) -> Call:
    """Liger's kernels, of which few are ops by themselves."""
    last = case.is_plain and case.axes == (len(case.shape) - 1,)
    if case.op.kind != "softmax" or not last:
        raise NotOffered("Liger has no such op")
    from liger_kernel.ops.softmax import LigerSoftmaxFunction

    return called(case, given, LigerSoftmaxFunction.apply)


def by_flag_gems(case: Case, given: Tensors) -> Call:
    """torch's own op with FlagGems' kernels in its place, where it has them."""
    import flag_gems

    forward = torch_forward(import_torch(), case, given)

    def replaced(*tensors: Any) -> Any:
        with flag_gems.use_gems():
            return forward(*tensors)

    call = called(case, given, replaced)

    def inside() -> object:
        with flag_gems.use_gems():
            return call()

    return inside


PEERS: Mapping[str, tuple[str, Callable[[Case, Tensors], Call]]] = {
    "torch": ("torch", by_torch),
    "compile": ("torch", by_compile),
    "liger": ("liger_kernel", by_liger),
    "flaggems": ("flag_gems", by_flag_gems),
}


def installed() -> tuple[str, ...]:
    """Those of the peers whose library is here."""
    return tuple(n for n, (module, _) in PEERS.items() if importlib.util.find_spec(module))


def prepare(name: str, case: Case, given: Tensors) -> tuple[Call | None, str]:
    """A peer's call, warmed up once; or None and the reason why it does not run."""
    import warnings

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            call = PEERS[name][1](case, given)
            call()
    except NotOffered as reason:
        return None, str(reason)
    except Exception as error:  # whatever a peer raises, the others go on
        return None, f"{type(error).__name__}: {str(error).strip().splitlines()[0][:120]}"
    return call, ""
