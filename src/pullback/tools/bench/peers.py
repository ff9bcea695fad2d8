"""What a user would run instead: each peer makes a call that does the same job on the same data."""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from . import plain
from .case import Case

Call = Callable[[], object]


class NotOffered(Exception):
    """The peer has no such op, or not for this dtype."""


class NumpyPeer:
    """The plain formula."""

    name, module = "numpy", "numpy"

    def prepare(self, case: Case, operands: Mapping[str, np.ndarray]) -> Call:
        get = operands.get
        if case.family == "segment":
            ids = operands["segment_ids"]
            if case.op.direction == "backward":
                d_output = operands["d_output"]
                return lambda: d_output[ids]
            rows = operands["input"]
            return lambda: plain.segment_sum(rows, ids, case.segments)
        if case.family == "lerp":
            w = operands[case.op.inputs[0]].dtype.type(case.weight)
            if case.op.direction == "backward":
                dy = operands["dy"]
                return lambda: ((1 - w) * dy, w * dy)
            a, b = operands["a"], operands["b"]
            return lambda: a + w * (b - a)
        backward = case.op.direction == "backward"
        formula: Any = (plain.BACKWARD if backward else plain.FORWARD).get(case.op.kind)
        if formula is None:
            raise NotOffered(f"no plain formula for {case.op.name}")
        if not backward:
            return lambda: formula(operands["x"], case.axes, case.correction)
        arguments = (get("dy"), get("x"), get("y"), case.shape, case.axes, case.correction)
        return lambda: formula(*arguments)


def torch_forward(torch: Any, case: Case) -> Callable[..., Any]:
    """The op of a case in torch."""
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
        return lambda x: function(x, dim=axes, keepdim=True, correction=case.correction)
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
    if kind == "lerp":
        return lambda a, b: torch.lerp(a, b, case.weight)
    raise NotOffered(f"torch has no {kind}")


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

    def _forward(self, torch: Any, case: Case) -> Callable[..., Any]:
        return torch_forward(torch, case)

    def prepare(self, case: Case, operands: Mapping[str, np.ndarray]) -> Call:
        import torch

        given = {n: to_torch(torch, a) for n, a in operands.items()}
        if case.family == "segment":
            ids, shape = given["segment_ids"], (case.segments, case.shape[1])
            if case.op.direction == "forward":
                rows = given["input"]
                return lambda: torch.zeros(shape, dtype=rows.dtype).index_add_(0, ids, rows)
            rows = torch.zeros(case.shape, dtype=given["d_output"].dtype, requires_grad=True)
            y = self._segment(torch, shape, ids)(rows)
            return self._backward(torch, y, (rows,), given["d_output"])
        forward = self._forward(torch, case)
        names = ("a", "b") if case.family == "lerp" else ("x",)
        if case.op.direction == "forward":
            read = [given[n] for n in names]
            return lambda: forward(*read)
        dtype = given["dy"].dtype
        generator = torch.Generator().manual_seed(0)
        leaves = [
            given[n].detach().requires_grad_()
            if n in given
            else torch.randn(case.shape, generator=generator).to(dtype).requires_grad_()
            for n in names
        ]
        return self._backward(torch, forward(*leaves), leaves, given["dy"])

    def _segment(self, torch: Any, shape: tuple[int, int], ids: Any) -> Callable[..., Any]:
        return lambda rows: torch.zeros(shape, dtype=rows.dtype).index_add(0, ids, rows)

    def _backward(self, torch: Any, y: Any, leaves: Any, dy: Any) -> Call:
        def call() -> object:
            found = torch.autograd.grad(y, leaves, dy, retain_graph=True)
            return [g.contiguous() for g in found]

        return call


class CompilePeer(TorchPeer):
    """The same through ``torch.compile``."""

    name, module = "compile", "torch"

    def _forward(self, torch: Any, case: Case) -> Callable[..., Any]:
        torch._dynamo.reset()
        return torch.compile(torch_forward(torch, case), dynamic=False)

    def _segment(self, torch: Any, shape: tuple[int, int], ids: Any) -> Callable[..., Any]:
        torch._dynamo.reset()
        return torch.compile(super()._segment(torch, shape, ids), dynamic=False)


def jax_forward(jax: Any, case: Case) -> Callable[..., Any]:
    """The op of a case in JAX."""
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
        return lambda x: getattr(jnp, kind)(x, axis=axes, keepdims=True, ddof=case.correction)
    if kind == "norm2":
        return lambda x: jnp.sqrt(jnp.sum(x * x, axis=axes, keepdims=True))
    if kind == "logsumexp":
        return lambda x: jax.nn.logsumexp(x, axis=axes, keepdims=True)
    if kind in ("softmax", "log_softmax"):
        return lambda x: getattr(jax.nn, kind)(x, axis=axis)
    if kind == "lerp":
        return lambda a, b: a + case.weight * (b - a)
    raise NotOffered(f"JAX has no {kind}")


class JaxPeer:
    """``jax.vjp`` under ``jax.jit``, with the residuals held by the pullback function."""

    name, module = "jax", "jax"

    def prepare(self, case: Case, operands: Mapping[str, np.ndarray]) -> Call:
        import jax

        if case.element == "f64" and not jax.config.jax_enable_x64:
            jax.config.update("jax_enable_x64", True)
        given = {n: jax.numpy.asarray(a) for n, a in operands.items()}
        if case.family == "segment":
            ids, segments = given["segment_ids"], case.segments

            def forward(rows: Any) -> Any:
                ordered = case.order == "sorted"
                return jax.ops.segment_sum(rows, ids, segments, indices_are_sorted=ordered)

            leaves: list[Any] = [given.get("input")]
            dy: Any = given.get("d_output")
        else:
            forward = jax_forward(jax, case)
            names = ("a", "b") if case.family == "lerp" else ("x",)
            leaves, dy = [given.get(n) for n in names], given.get("dy")
        if case.op.direction == "forward":
            jitted = jax.jit(forward)
            return lambda: jax.block_until_ready(jitted(*leaves))
        made = [
            leaf
            if leaf is not None
            else jax.random.normal(jax.random.key(0), case.shape).astype(dy.dtype)
            for leaf in leaves
        ]
        _, pull = jax.vjp(forward, *made)
        jitted = jax.jit(lambda f, d: f(d))
        return lambda: jax.block_until_ready(jitted(pull, dy))


PEERS: Mapping[str, Any] = {p.name: p for p in (TorchPeer(), CompilePeer(), JaxPeer(), NumpyPeer())}
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
