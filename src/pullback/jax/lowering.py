"""How a call becomes part of an XLA program: by the FFI on the CPU, by a callback if need be."""

from __future__ import annotations

import os
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.interpreters import mlir

from ..errors import UnsupportedError
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
        Sizes of the API's table of functions and of a call frame, in bytes.
    """
    from . import handler

    major = version & 0xFFFFFFFF
    if major != handler.API_MAJOR:
        return f"XLA's FFI has major version {major}, known is {handler.API_MAJOR}"
    for what, size in (("api", api), ("frame", frame)):
        if size < handler.SMALLEST[what]:
            return f"XLA's FFI {what} has {size} bytes, needed are {handler.SMALLEST[what]}"
    return None


@cache
def ffi_problem() -> str | None:
    """Register the handler; why calls must go through a callback instead, or None."""
    if os.environ.get(FALLBACK, "") not in ("", "0"):
        return f"{FALLBACK} is set"
    if not hasattr(jax, "ffi"):
        return f"jax {jax.__version__} has no jax.ffi"
    from . import handler

    capsule = jax.ffi.pycapsule(handler.handler.address)
    try:
        jax.ffi.register_ffi_target(TARGET, capsule, platform="cpu")
        jax.devices("cpu")  # handlers are handed to XLA when the platform starts
    except Exception as error:
        return f"XLA refused the handler: {error}"
    notes = handler.registry
    if not notes[handler.ASKED]:
        return "XLA did not ask the handler for its metadata"
    return abi_mismatch(
        *(int(notes[k]) for k in (handler.SEEN_VERSION, handler.SEEN_API, handler.SEEN_FRAME))
    )


def lower_on_cpu(ctx: Any, *operands: Any, pair: Pair, direction: str, outputs: tuple[str, ...]):
    """The rule for the CPU."""
    if all(0 in aval.shape for aval in ctx.avals_out):
        return mlir.lower_fun(
            lambda *_: [jnp.zeros(a.shape, a.dtype) for a in ctx.avals_out], multiple_results=True
        )(ctx, *operands)
    from . import launches

    problem, names = pair.problem(direction), pair.reads(direction)
    if ffi_problem() is not None:
        return _lower_callback(ctx, operands, problem, names, outputs)
    avals = dict(zip((*names, *outputs), (*ctx.avals_in, *ctx.avals_out), strict=True))
    shapes = {n: (a.shape, np.dtype(a.dtype)) for n, a in avals.items()}
    words, workspace = launches.describe(problem, shapes, outputs)
    results = list(ctx.avals_out)
    if workspace:
        results.append(jax.core.ShapedArray((workspace,), np.dtype(np.uint8)))
    rule = jax.ffi.ffi_lowering(TARGET)
    return rule(ctx.replace(avals_out=results), *operands, launch=words)[: len(outputs)]


def _lower_callback(ctx: Any, operands: Any, problem: Any, names: Any, outputs: Any):
    from . import launches

    shapes = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in ctx.avals_out]

    def on_host(*arrays: Any) -> list[np.ndarray]:
        held = {n: np.asarray(a) for n, a in zip(names, arrays, strict=True)}
        return launches.run_on_host(problem, held, outputs)

    def call(*arrays: Any) -> Any:
        return jax.pure_callback(on_host, shapes, *arrays)

    return mlir.lower_fun(call, multiple_results=True)(ctx, *operands)


def lower_elsewhere(ctx: Any, *operands: Any, pair: Pair, **_: Any):
    """The rule for every other platform."""
    platforms = ", ".join(ctx.platforms or ctx.module_context.platforms)
    raise UnsupportedError(
        f"{pair.forward.op.kind}: pullback.jax runs on the CPU only, got platform {platforms}; "
        f"place the arrays with jax.device_put(x, jax.devices('cpu')[0]) or use JAX's own op"
    )
