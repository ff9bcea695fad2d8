"""Forward and backward through a framework: pullback's functions beside the framework's own."""

from __future__ import annotations

import importlib.util
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np

from ...core.catalog import catalog
from ...core.declare import REQUIRED, Op
from ...core.pair import pair_of
from ..case import Case, cuts
from ..operands import make_operands
from .grouped import target_of
from .harness import Settings, heading, thread_count
from .peers import NotOffered, jax_forward, to_torch, torch_forward, variables
from .projections import BY_SORT
from .steps import KINDS
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

        # In memory of torch's own, which is aligned as its users' tensors are.
        tensors = {n: to_torch(torch, a).clone() for n, a in given.items()}
        leaves = [tensors[n].requires_grad_() for n in variables(case)]
        gradient = to_torch(torch, dy).clone()
        own = torch_forward(torch, case, tensors)
        functions: dict[str, Callable[..., Any]] = {
            "pullback": _our_torch(pt, case, tensors),
            "own": own,
        }

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
        leaves = [arrays[n] for n in variables(case)]
        gradient = jax.numpy.asarray(dy)
        functions = {"pullback": _our_jax(pj, case, arrays), "own": jax_forward(jax, case, arrays)}

        def step(function: Callable[..., Any]) -> Step:
            def both(gradient: Any, *leaves: Any) -> Any:
                value, pull = jax.vjp(function, *leaves)
                return pull(gradient), value

            jitted = jax.jit(both)
            return lambda: jax.block_until_ready(jitted(gradient, *leaves))[0]

        return {who: step(f) for who, f in functions.items()}


def _our_torch(pt: Any, case: Case, tensors: Mapping[str, Any]) -> Callable[..., Any]:
    kind, target = case.op.kind, target_of(case, tensors)
    if case.is_segmented:
        ids = tensors[cuts(case.op)[0].name]
        return lambda x: getattr(pt, kind)(x, ids, case.segments)
    if target is not None:
        (axis,) = case.axes
        return lambda x: getattr(pt, kind)(x, target.squeeze(axis), axis)[0].unsqueeze(axis)
    if kind in KINDS or kind in BY_SORT:  # which torch does not have
        return partial(getattr(pt, kind), dim=case.axes[0], **_required(case))
    return torch_forward(pt, case, tensors)


def _our_jax(pj: Any, case: Case, arrays: Mapping[str, Any]) -> Callable[..., Any]:
    function, target = getattr(pj, case.op.kind), target_of(case, arrays)
    if case.is_segmented:
        ids = arrays[cuts(case.op)[0].name]
        return lambda x: function(x, ids, case.segments)
    if target is not None:
        (axis,) = case.axes
        return lambda x: function(x, target.squeeze(axis), axis)[0][..., None].swapaxes(axis, -1)
    if "weight" in case.parameters:
        return lambda a, b: function(a, b, case.get("weight"))
    keywords: dict[str, Any] = {"axis": case.axes[0], **_required(case)}
    if case.op.parameter("keepdims"):
        keywords = {"axis": case.axes, "keepdims": True}
    if case.op.parameter("correction"):
        keywords["ddof"] = case.get("correction")
    return lambda *x: function(*x, **keywords)


def _required(case: Case) -> dict[str, Any]:
    """Parameters that have no default."""
    return {p.name: case.get(p.name) for p in case.op.parameters if p.default is REQUIRED}


FRONTENDS: Mapping[str, Any] = {f.name: f for f in (Torch(), Jax())}


def installed() -> tuple[str, ...]:
    """The frameworks that are here."""
    return tuple(n for n, f in FRONTENDS.items() if importlib.util.find_spec(f.module) is not None)


def case_of(op: Op, shape: tuple[int, int]) -> Case:
    """The forward of a kind on a matrix; a segment op on as many elements, in 16 rows each."""
    if cuts(op):
        rows = max(2, math.prod(shape) // SEGMENT_WIDTH)
        shape = (rows, min(SEGMENT_WIDTH, math.prod(shape)))
    return Case.of(op, "f32", shape, segments=-(-shape[0] // 16), axis=-1)


def _check(case: Case, found: Mapping[str, Any]) -> None:
    """Both give the same gradients, up to the rounding of a float32 sum over the axis."""
    slack = UNITS_PER_ELEMENT * (4 + case.extent) * 2.0**-23
    for ours, own in zip(found["pullback"], found["own"], strict=True):
        a, b = np.asarray(ours, np.float64), np.asarray(own, np.float64)
        scale = float(np.abs(b).max(initial=0.0))
        if not np.allclose(a, b, rtol=0, atol=slack * max(scale, 1e-30)):
            raise AssertionError(f"{case.op.kind}: the gradients differ by {np.abs(a - b).max()}")


def measure(frontend: str, op: Op, shape: tuple[int, int], settings: Settings) -> Row | None:
    """Check that both agree, then time them in turns; None without such an op, or gradient."""
    if pair_of(op.kind).backward is None:
        return None
    case = case_of(op, shape)
    given = make_operands(case)
    out = case.shape_of(case.outputs[0])
    dy = np.random.default_rng(1).standard_normal(out, np.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            steps = FRONTENDS[frontend].steps(case, given, dy)
        except NotOffered:
            return None
        try:
            own = steps["own"]()
        except NotImplementedError:  # JAX has no gradient of a product by segments
            return None
        _check(case, {"own": own, "pullback": steps["pullback"]()})
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
                    row = measure(frontend, op, shape, settings)
                    rows += [asdict(row)] if row else []
                    if progress:
                        progress(label, True)
    return heading(settings) | {
        "frontends": rows,
    }
