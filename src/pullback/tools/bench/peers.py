"""What a user would run instead: each peer makes a call that does the same job on the same data."""

from __future__ import annotations

import importlib
import importlib.util
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ...core.pair import pair_of
from ..case import Case
from . import grouped, plain, steps, variants
from .projections import BY_SORT, of_arrays, of_torch

Call = Callable[[], object]


class NotOffered(Exception):
    """The peer has no such op, or not for this dtype."""


def variables(case: Case) -> tuple[str, ...]:
    """The operands of the forward that gradients flow to; where none do, those it must have."""
    pair = pair_of(case.op.kind)
    if pair.backward:
        return pair.variables(case.given)
    return tuple(o.name for o in case.problem.reads if not o.optional)


def one_gradient(case: Case) -> str:
    """The gradient by the only output; a peer is asked for no more."""
    given = [n for n in case.cotangents if n in case.reads]
    if len(given) != 1:
        raise NotOffered("an op of several outputs")
    return given[0]


def recurrence(
    case: Case, given: Mapping[str, Any], library: Any, recur: steps.Recur
) -> Callable[..., Any]:
    """A recurrence written by hand, or by a scan that takes any step."""
    function = steps.forward(case, given, library, recur)
    if function is None:
        raise NotOffered(f"no {case.op.kind} of its own")
    return function


def form_of_scan(
    case: Case, given: Mapping[str, Any], library: variants.Library, plain_scan: Any
) -> Callable[..., Any]:
    """A scan that the library has by no name of its own."""
    function = variants.forward(case, given, library, plain_scan)
    if function is None:
        raise NotOffered("no such parameters")
    return function


def usual(case: Case) -> Case:
    """The case with all as usual but the axis."""
    return Case.of(case.op, case.element, case.shape, axis=case.get("axis"))


def has_weights(case: Case) -> bool:
    """Whether a mixture has an array of weights, which a gradient flows to as well."""
    return case.op.kind == "lerp" and "weight" in case.given


def short_enough(case: Case) -> None:
    """Refuse a loop over more steps than anybody would wait for."""
    if case.extent > steps.LONGEST:
        raise NotOffered(f"a loop over {case.extent} steps")


class NumpyPeer:
    """The plain formula."""

    name, module = "numpy", "numpy"

    def prepare(self, case: Case, operands: Mapping[str, np.ndarray]) -> Call:
        formula = plain.formula(case)
        if formula is None:
            raise NotOffered(f"no plain formula for {case.op.name}")
        return lambda: formula(operands)


def torch_forward(torch: Any, case: Case, given: Mapping[str, Any]) -> Callable[..., Any]:
    """The op of a case in torch, of the operands that gradients flow to; ``given`` are all."""
    mask = grouped.mask_of(case, given)
    if mask is not None:
        if case.op.kind in grouped.COUNTING:
            return grouped.torch_counting(torch, case, mask)
        whole = torch_forward(torch, case.but(given=()), given)
        return grouped.filled(case, mask, whole, torch.masked_fill)
    if case.is_segmented:
        return offered(case, grouped.torch_by_ids(torch, case, given))
    if has_weights(case):
        return lambda a, b, weight: torch.lerp(a, b, weight)
    if case.op.kind in steps.KINDS:
        short_enough(case)
        return recurrence(case, given, torch, steps.torch_loop(torch))
    if not case.is_plain:
        if "resets" in case.given:
            short_enough(case)
        plain_scan = (
            torch_forward(torch, usual(case), {}) if case.op.kind in variants.NOTHING else 0
        )
        return form_of_scan(case, given, variants.in_torch(torch, by_scan=False), plain_scan)
    found = grouped.torch_loss(torch, case, given)
    if found is not None:
        return found
    axes = case.axes
    axis = axes[0] if axes else 0
    reductions = {
        "sum": torch.sum,
        "mean": torch.mean,
        "max": torch.amax,
        "min": torch.amin,
        "norm2": torch.linalg.vector_norm,
        "logsumexp": torch.logsumexp,
    }
    kind = case.op.kind
    if kind in reductions:
        return lambda x: reductions[kind](x, dim=axes, keepdim=True)
    if kind in ("var", "std"):
        function = getattr(torch, kind)
        return lambda x: function(x, dim=axes, keepdim=True, correction=case.get("correction"))
    if kind == "prod":
        if len(axes) > 1:
            raise NotOffered("torch.prod takes one axis")
        return lambda x: torch.prod(x, axis, keepdim=True)
    if kind in ("cummax", "cummin"):
        function = getattr(torch, kind)
        return lambda x: function(x, axis)[0]
    if kind in ("cumsum", "cumprod", "logcumsumexp", "softmax", "log_softmax"):
        function = getattr(torch, kind)
        return lambda x: function(x, axis)
    if kind in BY_SORT:
        return lambda x: BY_SORT[kind](of_torch(torch), x, axis)
    if kind == "lerp":
        return lambda a, b: torch.lerp(a, b, case.get("weight"))
    raise NotOffered(f"no {kind} of its own")


def offered(case: Case, function: Callable[..., Any] | None) -> Callable[..., Any]:
    """A function, or the refusal of a peer that has none."""
    if function is None:
        raise NotOffered(f"no {case.op.kind} of its own")
    return function


def torch_means(case: Case) -> dict[str, str]:
    """Parameters by which the op does what torch does, where its usual ones differ."""
    return {"ties": "last"} if case.op.kind in ("cummax", "cummin") else {}


def torch_leaves(torch: Any, case: Case, given: Mapping[str, Any]) -> list[Any]:
    """What gradients flow to; numbers of its own where the backward has no use for the operand."""
    generator = torch.Generator().manual_seed(0)
    dtype = given[one_gradient(case)].dtype
    return [
        given[n].detach().requires_grad_()
        if n in given
        else torch.randn(case.shape, generator=generator).to(dtype).requires_grad_()
        for n in variables(case)
    ]


def to_torch(torch: Any, array: np.ndarray) -> Any:
    """A tensor on the array's memory; bfloat16 goes through its bits."""
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


class TorchPeer:
    """``torch.autograd.grad`` with a retained graph: the eager backward.

    The gradient of a sum comes as a view of dy that has no memory of its own; it is made dense, as
    the first use that needs memory would.
    """

    name, module = "torch", "torch"

    def _forward(self, torch: Any, case: Case, given: Mapping[str, Any]) -> Callable[..., Any]:
        return torch_forward(torch, case, given)

    def prepare(self, case: Case, operands: Mapping[str, np.ndarray]) -> Call:
        import torch

        held = grouped.with_ids(case, operands)
        given = {n: to_torch(torch, a) for n, a in held.items()}
        forward = self._forward(torch, case, given)
        names = variables(case)
        if case.op.direction == "forward":
            read = [given[n] for n in names]
            return lambda: forward(*read)
        gradient = given[one_gradient(case)]
        leaves = torch_leaves(torch, case, given)
        return self._backward(torch, forward(*leaves), leaves, gradient)

    def _backward(self, torch: Any, y: Any, leaves: Any, dy: Any) -> Call:
        def call() -> object:
            found = torch.autograd.grad(y, leaves, dy, retain_graph=True)
            return [g.contiguous() for g in found]

        return call


class SegmentReducePeer(TorchPeer):
    """``torch.segment_reduce``, for rows in the order of their segments."""

    name, module = "segment_reduce", "torch"

    def _forward(self, torch: Any, case: Case, given: Mapping[str, Any]) -> Callable[..., Any]:
        return offered(case, grouped.torch_by_ranges(torch, case, given))


class EntmaxPeer(TorchPeer):
    """The package entmax, on torch tensors."""

    name, module = "entmax", "entmax"

    def _forward(self, torch: Any, case: Case, given: Mapping[str, Any]) -> Callable[..., Any]:
        if case.op.kind not in BY_SORT:
            raise NotOffered(f"no {case.op.kind} of its own")
        function = getattr(importlib.import_module("entmax"), case.op.kind)
        return lambda x: function(x, dim=case.axes[0] if case.axes else 0)


class CompilePeer(TorchPeer):
    """The same through ``torch.compile``."""

    name, module = "compile", "torch"

    def _forward(self, torch: Any, case: Case, given: Mapping[str, Any]) -> Callable[..., Any]:
        torch._dynamo.reset()
        if case.op.kind in steps.KINDS:
            forward = recurrence(case, given, torch, steps.torch_scan(torch))
        elif "resets" in case.given:
            forward = form_of_scan(case, given, variants.in_torch(torch, by_scan=True), None)
        else:
            forward = torch_forward(torch, case, given)
        return torch.compile(forward, dynamic=False)


def jax_forward(jax: Any, case: Case, given: Mapping[str, Any]) -> Callable[..., Any]:
    """The op of a case in JAX, of the operands that gradients flow to; ``given`` are all."""
    mask = grouped.mask_of(case, given)
    if mask is not None:
        if case.op.kind in grouped.COUNTING:
            return grouped.jax_counting(jax, case, mask)
        whole = jax_forward(jax, case.but(given=()), given)
        fill = lambda x, where, value: jax.numpy.where(where, value, x)  # noqa: E731
        return grouped.filled(case, mask, whole, fill)
    if case.is_segmented:
        return offered(case, grouped.jax_by_ids(jax, case, given))
    if has_weights(case):
        return lambda a, b, weight: a + weight * (b - a)
    if case.op.kind in steps.KINDS:
        return recurrence(case, given, jax.numpy, steps.jax_associative(jax))
    if not case.is_plain:
        plain_scan = jax_forward(jax, usual(case), {}) if case.op.kind in variants.NOTHING else 0
        return form_of_scan(case, given, variants.in_jax(jax, by_loop=False), plain_scan)
    found = grouped.jax_loss(jax, case, given)
    if found is not None:
        return found
    jnp, lax, kind, axes = jax.numpy, jax.lax, case.op.kind, case.axes
    axis = axes[0] if axes else 0
    scans = {
        "cumsum": lax.cumsum,
        "cumprod": lax.cumprod,
        "cummax": lax.cummax,
        "cummin": lax.cummin,
        "logcumsumexp": lax.cumlogsumexp,
    }
    if kind in scans:
        return lambda x: scans[kind](x, axis=axis)
    if kind in ("sum", "mean", "max", "min", "prod"):
        return lambda x: getattr(jnp, kind)(x, axis=axes, keepdims=True)
    if kind in ("var", "std"):
        return lambda x: getattr(jnp, kind)(
            x, axis=axes, keepdims=True, ddof=case.get("correction")
        )
    if kind == "norm2":
        return lambda x: jnp.sqrt(jnp.sum(x * x, axis=axes, keepdims=True))
    if kind == "logsumexp":
        return lambda x: jax.nn.logsumexp(x, axis=axes, keepdims=True)
    if kind in ("softmax", "log_softmax"):
        return lambda x: getattr(jax.nn, kind)(x, axis=axis)
    if kind in BY_SORT:
        return lambda x: BY_SORT[kind](of_arrays(jnp), x, axis)
    if kind == "lerp":
        return lambda a, b: a + case.get("weight") * (b - a)
    raise NotOffered(f"no {kind} of its own")


class JaxPeer:
    """``jax.vjp`` under ``jax.jit``, with the residuals held by the pullback function."""

    name, module = "jax", "jax"

    def _forward(self, jax: Any, case: Case, given: Mapping[str, Any]) -> Callable[..., Any]:
        return jax_forward(jax, case, given)

    def prepare(self, case: Case, operands: Mapping[str, np.ndarray]) -> Call:
        import jax

        if case.element == "f64" and not jax.config.jax_enable_x64:
            jax.config.update("jax_enable_x64", True)
        held = grouped.with_ids(case, operands)
        given = {n: jax.numpy.asarray(a) for n, a in held.items()}
        forward = self._forward(jax, case, given)
        leaves: list[Any] = [given.get(n) for n in variables(case)]
        if case.op.direction == "forward":
            # Ids and masks are arguments: XLA would compute ahead with what it knows.
            jitted = jax.jit(lambda held, *read: self._forward(jax, case, held)(*read))
            return lambda: jax.block_until_ready(jitted(given, *leaves))
        dy = given[one_gradient(case)]
        made = [
            leaf
            if leaf is not None
            else jax.random.normal(jax.random.key(0), case.shape).astype(dy.dtype)
            for leaf in leaves
        ]
        # Compiled as one: step by step, cumlogsumexp is 400 programs, which take ten seconds.
        _, pull = jax.jit(lambda *leaves: jax.vjp(forward, *leaves))(*made)
        jitted = jax.jit(lambda f, d: f(d))
        return lambda: jax.block_until_ready(jitted(pull, dy))


class JaxScanPeer(JaxPeer):
    """A recurrence, or a scan cut into runs, by ``jax.lax.scan``."""

    name, module = "jax.scan", "jax"

    def _forward(self, jax: Any, case: Case, given: Mapping[str, Any]) -> Callable[..., Any]:
        short_enough(case)
        if "resets" in case.given and case.op.kind not in steps.KINDS:
            return form_of_scan(case, given, variants.in_jax(jax, by_loop=True), None)
        return recurrence(case, given, jax.numpy, steps.jax_scan(jax))


_ALL = (
    TorchPeer(),
    SegmentReducePeer(),
    EntmaxPeer(),
    CompilePeer(),
    JaxPeer(),
    JaxScanPeer(),
    NumpyPeer(),
)
PEERS: Mapping[str, Any] = {p.name: p for p in _ALL}
QUICK_PEERS = ("torch", "numpy")


def installed(names: tuple[str, ...] = tuple(PEERS)) -> tuple[str, ...]:
    """Those of the peers whose library is here."""
    return tuple(n for n in names if importlib.util.find_spec(PEERS[n].module) is not None)


def prepare(name: str, case: Case, operands: Mapping[str, np.ndarray]) -> tuple[Call | None, str]:
    """A peer's call, warmed up once; or None and the reason why it does not run."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            call = PEERS[name].prepare(case, operands)
            call()
    except NotOffered as reason:
        return None, str(reason)
    except Exception as error:  # whatever a peer raises, the others go on
        return None, f"{type(error).__name__}: {str(error).strip().splitlines()[0][:120]}"
    return call, ""
