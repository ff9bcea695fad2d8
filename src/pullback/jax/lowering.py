"""How a call becomes part of an XLA program: by the FFI on the CPU, by a callback if need be."""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
from functools import cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.interpreters import mlir

from ..core.elements import ELEMENTS
from ..core.problem import Problem
from ..errors import UnsupportedError
from ..formulas.arrays import evaluate
from .arrays import JAX
from .pairs import Pair

TARGET = "pullback_launch"
FALLBACK = "PULLBACK_JAX_CALLBACK"


def abi_mismatch(version: int, api: int, frame: int) -> str | None:
    """Why the FFI that XLA described cannot be used, or None.

    Parameters
    ----------
    version
        The API version: major in the low half, minor in the high half.
    api, frame
        Sizes of the API's table of functions and of a call frame, in bytes; 0 if not said.
    """
    from . import handler

    major = version & 0xFFFFFFFF
    if major != handler.API_MAJOR:
        return f"XLA's FFI has major version {major}, known is {handler.API_MAJOR}"
    for what, size in (("api", api), ("frame", frame)):
        if 0 < size < handler.SMALLEST[what]:
            return f"XLA's FFI {what} has {size} bytes, needed are {handler.SMALLEST[what]}"
    return None


def jax_ffi() -> Any:
    """The FFI of this JAX, where it has one."""
    names = ("jax.ffi", "jax.extend.ffi")  # the second until jax 0.4.38
    found = [name for name in names if importlib.util.find_spec(name)]
    return importlib.import_module(found[0]) if found else None


def header_version(folder: str) -> int:
    """The API version in the C header that comes with jaxlib, in the form of the API itself."""
    try:
        text = Path(folder, "xla", "ffi", "api", "c_api.h").read_text(encoding="utf-8")
    except OSError:
        return 0
    major, minor = (
        int(found[1]) if (found := re.search(rf"#define XLA_FFI_API_{part} (\d+)", text)) else 0
        for part in ("MAJOR", "MINOR")
    )
    return (minor << 32) + major


@cache
def ffi_problem() -> str | None:
    """Register the handler; why calls must go through a callback instead, or None."""
    if os.environ.get(FALLBACK, "") not in ("", "0"):
        return f"{FALLBACK} is set"
    ffi = jax_ffi()
    if ffi is None:
        return f"jax {jax.__version__} has no FFI"
    from . import handler

    notes = handler.registry
    notes[handler.HEADER_VERSION] = header_version(ffi.include_dir())
    # A platform that starts with a handler it refuses does not start at all: start it first.
    jax.devices("cpu")
    try:
        ffi.register_ffi_target(TARGET, ffi.pycapsule(handler.handler.address), platform="cpu")
    except Exception as error:
        return f"XLA refused the handler: {error}"
    if not notes[handler.ASKED]:
        return "XLA did not ask the handler for its metadata"
    return abi_mismatch(
        int(notes[handler.SEEN_VERSION]),
        int(notes[handler.SEEN_API]),
        int(notes[handler.SEEN_FRAME]),
    )


def lower_on_cpu(
    ctx: Any,
    *operands: Any,
    pair: Pair,
    direction: str,
    inputs: tuple[str, ...],
    outputs: tuple[str, ...],
):
    """The rule for the CPU."""
    if all(0 in aval.shape for aval in ctx.avals_out):
        return mlir.lower_fun(
            lambda *_: [jnp.zeros(a.shape, a.dtype) for a in ctx.avals_out], multiple_results=True
        )(ctx, *operands)
    problem = pair.problem(direction, inputs)
    if is_exported(ctx):
        return lower_formula(ctx, *operands, problem=problem, inputs=inputs, outputs=outputs)
    from . import launches, partition

    if partition.is_partitioned(ctx.module_context) and ffi_problem() is None:
        call = partition.partitioned(pair, direction, inputs, outputs)
        return mlir.lower_fun(call, multiple_results=True)(ctx, *operands)
    avals = dict(zip((*inputs, *outputs), (*ctx.avals_in, *ctx.avals_out), strict=True))
    shapes = {n: (a.shape, np.dtype(a.dtype)) for n, a in avals.items()}
    results = list(ctx.avals_out)
    spare = launches.also_written(problem, outputs)
    if spare is not None:
        shapes[spare] = (problem.shape, ELEMENTS[problem.element].dtype)
        results.append(jax.core.ShapedArray(*shapes[spare]))
    made = tuple(shapes)[len(inputs) :]
    if ffi_problem() is not None:
        return _lower_callback(ctx, operands, problem, shapes, made)[: len(outputs)]
    words, workspace = launches.describe(problem, shapes, made)
    if workspace:
        results.append(jax.core.ShapedArray((workspace,), np.dtype(np.uint8)))
    rule = jax_ffi().ffi_lowering(TARGET)
    return rule(ctx.replace(avals_out=results), *operands, launch=words)[: len(outputs)]


def _lower_callback(ctx: Any, operands: Any, problem: Any, shapes: Any, outputs: Any):
    from . import launches

    made = {n: jax.ShapeDtypeStruct(*shapes[n]) for n in outputs}
    ctx = ctx.replace(avals_out=[jax.core.ShapedArray(*shapes[n]) for n in outputs])

    def on_host(*arrays: Any) -> list[np.ndarray]:
        held = {n: np.asarray(a) for n, a in zip(shapes, arrays, strict=False)}
        return launches.run_on_host(problem, held, {n: m.dtype for n, m in made.items()})

    def call(*arrays: Any) -> Any:
        return jax.pure_callback(on_host, list(made.values()), *arrays)

    return mlir.lower_fun(call, multiple_results=True)(ctx, *operands)


def is_exported(ctx: Any) -> bool:
    """Whether ``jax.export`` asks: what it makes must run where there are no kernels."""
    how = getattr(ctx.module_context, "lowering_parameters", None)
    return bool(getattr(how, "for_export", False))


def lower_formula(
    ctx: Any, *operands: Any, problem: Problem, inputs: tuple[str, ...], outputs: tuple[str, ...]
):
    """The formula as ordinary JAX code, on any platform."""

    def call(*arrays: Any) -> list[Any]:
        named = zip(inputs, arrays, strict=True)
        given = {n: jnp.broadcast_to(a, problem.shape_of(n)) for n, a in named}
        results = evaluate(problem, given, JAX)
        found = dict(zip((o.name for o in problem.writes), results, strict=True))
        return [found[n].astype(a.dtype) for n, a in zip(outputs, ctx.avals_out, strict=True)]

    return mlir.lower_fun(call, multiple_results=True)(ctx, *operands)


def lower_elsewhere(
    ctx: Any,
    *operands: Any,
    pair: Pair,
    direction: str,
    inputs: tuple[str, ...],
    outputs: tuple[str, ...],
):
    """The rule for every other platform."""
    if is_exported(ctx):
        problem = pair.problem(direction, inputs)
        return lower_formula(ctx, *operands, problem=problem, inputs=inputs, outputs=outputs)
    platforms = ", ".join(ctx.platforms or ctx.module_context.platforms)
    raise UnsupportedError(
        f"{pair.forward.op.kind}: pullback.jax runs on the CPU only, got platform {platforms}; "
        f"place the arrays with jax.device_put(x, jax.devices('cpu')[0]) or use JAX's own op"
    )
