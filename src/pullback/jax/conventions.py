"""Names and defaults that JAX has for functions of its own, where they differ from the catalog's.

Nothing else here names an op: all that is not in these tables comes from the rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import jax.numpy as jnp

from ..core import parse
from ..core.declare import Op, Parameter
from ..core.pair import Pair
from ..errors import InvalidProblemError, UnsupportedError

# Names that JAX has beside the catalog's.
ALIASES = {"amax": "max", "amin": "min", "cumlogsumexp": "logcumsumexp"}

# Arguments that are called otherwise in jax.ops.
NAMES = {"input": "data", "sorted": "indices_are_sorted"}

# jax.numpy flattens along with its scans, where axis is None; jax.nn takes several axes.
_FLATTENS = {"parse": parse.optional_integer, "doc": "The axis; None flattens first."}
_SEVERAL = {"parse": parse.axes, "doc": "The axes; None means all of them."}
_AXES: dict[str, dict[str, Any]] = {
    "cumsum": {**_FLATTENS, "default": None},
    "cumprod": {**_FLATTENS, "default": None},
    "cummax": {**_FLATTENS, "default": 0},
    "cummin": {**_FLATTENS, "default": 0},
    "logcumsumexp": {**_FLATTENS, "default": 0},
    "softmax": _SEVERAL,
    "log_softmax": _SEVERAL,
}
_PARAMETERS: dict[str, dict[str, Any]] = {
    "num_segments": {
        "parse": parse.optional_count,
        "default": None,
        "doc": "Rows of the output; without it the largest id and one more, which jit cannot know.",
    },
    "sorted": {
        "is_positional": True,
        "doc": "The ids ascend, which saves ordering them; not checked.",
    },
    "out_of_range": {
        "default": "drop",
        "doc": 'What to do with an id outside [0, num_segments): "drop" its row, or "raise", which '
        "needs ids that are known, so not under jit.",
    },
    "correction": {"default": None, "doc": "Another name for ddof; give one of them."},
}
_DDOF = Parameter("ddof", parse.correction, 0, doc="What is subtracted from the count.")
_AXIS_NAME = Parameter(
    "axis_name",
    parse.flag,
    None,
    doc="Inside jax.shard_map: the mesh axis, or axes, over which the op's axis is cut.",
)
_UNIQUE = Parameter(
    "unique_indices", parse.flag, False, is_positional=True, doc="Accepted and not needed."
)
_BUCKET_SIZE = Parameter(
    "bucket_size",
    parse.optional_count,
    None,
    is_positional=True,
    doc="Accepted and not needed: sums are in float64.",
)


def check_mode(value: Any, what: str) -> None:
    """Refuse what jax.ops does with ids out of range beside dropping them."""
    if value is not None and str(getattr(value, "name", value)).lower() not in _DROPPING:
        raise UnsupportedError(f"{what}: expected None, 'drop' or 'fill', got {value!r}")


_DROPPING = ("drop", "fill", "fill_or_drop")
parse.KINDS[check_mode] = parse.Kind("", "str | None", "str?")
_MODE = Parameter(
    "mode",
    check_mode,
    None,
    is_positional=True,
    doc='None, "drop" or "fill": rows whose id is out of range are left out. No other is served.',
)
# Reductions that jax.numpy begins from a value of the caller's.
BEGINS = {"sum": jnp.add, "prod": jnp.multiply, "max": jnp.maximum, "min": jnp.minimum}
_INITIAL = Parameter(
    "initial", parse.optional_real, None, doc="A scalar that every reduction begins from."
)


def row_in_jax(pair: Pair) -> Op:
    """The forward row of a pair with all parameters, as JAX calls them and with its defaults."""
    op = pair.forward
    reads = tuple(replace(o, name=NAMES.get(o.name, o.name)) for o in op.reads)
    return replace(op, reads=reads, parameters=tuple(_parameters(pair)))


def _parameters(pair: Pair) -> Iterator[Parameter]:
    for p in pair.parameters:
        if p.name == "correction":
            yield _DDOF
        own = _AXES.get(pair.forward.kind, {}) if p.name == "axis" else _PARAMETERS.get(p.name, {})
        yield replace(p, **{"name": NAMES.get(p.name, p.name), **own})
        if p.name == "sorted":
            yield from (_UNIQUE, _BUCKET_SIZE, _MODE)
        if p.name == "keepdims" and pair.forward.kind in BEGINS:
            yield _INITIAL
    if pair.forward.parameter("axis") is not None:
        yield _AXIS_NAME


def begun(kind: str, result: Any, initial: Any) -> Any:
    """A reduction that began from a scalar."""
    if jnp.ndim(initial):
        raise InvalidProblemError(f"initial: expected a scalar, got shape {jnp.shape(initial)}")
    return BEGINS[kind](jnp.asarray(initial, result.dtype), result)


def correction_of(ddof: Any, correction: Any) -> Any:
    """The one of ddof and correction that was given."""
    if correction is None:
        return ddof
    if ddof != 0:
        raise InvalidProblemError("correction: expected it or ddof, got both")
    return correction
