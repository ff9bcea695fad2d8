"""Forward and backward through a framework: pullback's functions beside the framework's own."""

from __future__ import annotations

import importlib.util
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np

from ...core.catalog import catalog
from ...core.declare import Op
from .case import Case
from .harness import Settings, heading, thread_count
from .operands import make_operands
from .peers import jax_forward, to_torch, torch_forward
from .timing import interleave

SHAPES = ((4096, 4096), (1, 128))
# A row of a framework's own float32 sum may be off by this many units for each element.
UNITS_PER_ELEMENT = 1.0
SEGMENT_WIDTH = 64

Step = Callable[[], Any]


@dataclass(frozen=True)
class Row:
    """One op on one shape: milliseconds of both for a forward and a backward."""

    frontend: str
    op: str
    shape: str
    ms: float
    own_ms: float
    noise: float | None


class Torch:
    """``pullback.torch`` beside torch: a call and ``torch.autograd.grad`` of it."""

    name, module = "torch", "torch"

    def steps(self, case: Case, given: Mapping[str, np.ndarray], dy: np.ndarray) -> dict[str, Step]:
        """Both contenders as calls that give the gradients."""
        import torch

        import pullback.torch as pt

        functions_of_ours = {n: getattr(pt, n) for n in dir(pt) if not n.startswith("_")}
        linalg = SimpleNamespace(vector_norm=pt.norm2)
        ours = SimpleNamespace(**functions_of_ours, linalg=linalg)
        # In memory of torch's own, which is aligned as its users' tensors are.
        tensors = {n: to_torch(torch, a).clone() for n, a in given.items()}
        leaves = [tensors[n].requires_grad_() for n in given if n != "segment_ids"]
        gradient = to_torch(torch, dy).clone()
        if case.family == "segment":
            ids, count = tensors["segment_ids"], case.segments
            functions: dict[str, Callable[..., Any]] = {
                "pullback": lambda x: pt.segment_sum(x, ids, count),
                "own": lambda x: x.new_zeros(count, x.shape[1]).index_add(0, ids, x),
            }
        else:
            functions = {"pullback": torch_forward(ours, case), "own": torch_forward(torch, case)}

        def step(function: Callable[..., Any]) -> Step:
            return lambda: torch.autograd.grad(function(*leaves), leaves, gradient)

        return {who: step(f) for who, f in functions.items()}


class Jax:
    """``pullback.jax`` beside JAX: value and gradients under one jit."""

    name, module = "jax", "jax"

    def steps(self, case: Case, given: Mapping[str, np.ndarray], dy: np.ndarray) -> dict[str, Step]:
        """Both contenders as calls that give the gradients."""
        import jax

        import pullback.jax as pj

        arrays = {n: jax.numpy.asarray(a) for n, a in given.items()}
        leaves = [arrays[n] for n in given if n != "segment_ids"]
        gradient = jax.numpy.asarray(dy)
        if case.family == "segment":
            ids, count = arrays["segment_ids"], case.segments
            functions: dict[str, Callable[..., Any]] = {
                "pullback": lambda x: pj.segment_sum(x, ids, count),
                "own": lambda x: jax.ops.segment_sum(x, ids, count),
            }
        else:
            functions = {"pullback": _our_jax(pj, case), "own": jax_forward(jax, case)}

        def step(function: Callable[..., Any]) -> Step:
            def both(gradient: Any, *leaves: Any) -> Any:
                value, pull = jax.vjp(function, *leaves)
                return pull(gradient), value

            jitted = jax.jit(both)
            return lambda: jax.block_until_ready(jitted(gradient, *leaves))[0]

        return {who: step(f) for who, f in functions.items()}


def _our_jax(pj: Any, case: Case) -> Callable[..., Any]:
    function, axes = getattr(pj, case.op.kind), case.axes
    if case.family == "lerp":
        return lambda a, b: function(a, b, case.weight)
    if case.family != "reduce":
        return lambda x: function(x, axis=axes[0])
    extra = {"ddof": case.correction} if case.op.kind in ("var", "std") else {}
    return lambda x: function(x, axis=axes, keepdims=True, **extra)


FRONTENDS: Mapping[str, Any] = {f.name: f for f in (Torch(), Jax())}


def installed() -> tuple[str, ...]:
    """The frameworks that are here."""
    return tuple(n for n, f in FRONTENDS.items() if importlib.util.find_spec(f.module) is not None)


def case_of(op: Op, shape: tuple[int, int]) -> Case:
    """The forward of a kind on a matrix; a segment sum on as many elements, in 16 rows each."""
    if op.family == "segment":
        rows = max(2, math.prod(shape) // SEGMENT_WIDTH)
        width = min(SEGMENT_WIDTH, math.prod(shape))
        return Case(op, "f32", (rows, width), None, segments=-(-rows // 16), order="random")
    return Case(op, "f32", shape, None if op.family == "lerp" else -1)


def _check(case: Case, found: Mapping[str, Any]) -> None:
    """Both give the same gradients, up to the rounding of a float32 sum over the axis."""
    slack = UNITS_PER_ELEMENT * (4 + case.extent) * 2.0**-23
    for ours, own in zip(found["pullback"], found["own"], strict=True):
        a, b = np.asarray(ours, np.float64), np.asarray(own, np.float64)
        scale = float(np.abs(b).max(initial=0.0))
        if not np.allclose(a, b, rtol=0, atol=slack * max(scale, 1e-30)):
            raise AssertionError(f"{case.op.kind}: the gradients differ by {np.abs(a - b).max()}")


def measure(frontend: str, op: Op, shape: tuple[int, int], settings: Settings) -> Row:
    """Check that both agree, then time them in turns."""
    case = case_of(op, shape)
    given = make_operands(case)
    out = case.shape_of("output" if case.family == "segment" else "y")
    dy = np.random.default_rng(1).standard_normal(out, np.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        steps = FRONTENDS[frontend].steps(case, given, dy)
        _check(case, {who: step() for who, step in steps.items()})
        times = interleave(steps, settings.rounds, settings.budget)
    best = times["pullback"]
    label = "x".join(map(str, shape))
    return Row(frontend, op.kind, label, best.best * 1e3, times["own"].best * 1e3, best.noise)


def run(
    ops: Sequence[Op],
    frontends: Sequence[str],
    shapes: Sequence[tuple[int, int]],
    settings: Settings,
    progress: Callable[[str, bool], None] | None = None,
) -> dict[str, Any]:
    """Rows for every kind of ``ops``; ``progress`` hears of each one before and after."""
    kinds = {op.kind for op in ops}
    forwards = [op for op in catalog() if op.direction == "forward" and op.kind in kinds]
    rows = []
    with thread_count(settings.threads, ("torch",) if "torch" in frontends else ()):
        for frontend in frontends:
            for op in forwards:
                for shape in shapes:
                    label = f"{frontend} {op.kind} {'x'.join(map(str, shape))}"
                    if progress:
                        progress(label, False)
                    rows.append(asdict(measure(frontend, op, shape, settings)))
                    if progress:
                        progress(label, True)
    return heading(settings) | {
        "frontends": rows,
    }
