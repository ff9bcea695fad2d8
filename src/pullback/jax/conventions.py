"""Names and defaults that JAX has for functions of its own, where they differ from the catalog's.

Nothing else here names an op: all that is not in these tables comes from the rows.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp

from ..core import parse
from ..core.declare import REQUIRED, Op, Parameter, Role
from ..core.pair import Pair
from ..errors import InvalidProblemError, UnsupportedError

# Names that JAX has beside the catalog's.
ALIASES = {"amax": "max", "amin": "min", "cumlogsumexp": "logcumsumexp"}

# JAX's own function of a kind.
HOMES = {
    "cumsum": "jax.numpy.cumsum",
    "cumprod": "jax.numpy.cumprod",
    "cummax": "jax.lax.cummax",
    "cummin": "jax.lax.cummin",
    "logcumsumexp": "jax.lax.cumlogsumexp",
    "sum": "jax.numpy.sum",
    "mean": "jax.numpy.mean",
    "max": "jax.numpy.max",
    "min": "jax.numpy.min",
    "prod": "jax.numpy.prod",
    "norm2": "jax.numpy.linalg.norm",
    "logsumexp": "jax.nn.logsumexp",
    "var": "jax.numpy.var",
    "std": "jax.numpy.std",
    "softmax": "jax.nn.softmax",
    "log_softmax": "jax.nn.log_softmax",
    "segment_sum": "jax.ops.segment_sum",
    "segment_max": "jax.ops.segment_max",
    "segment_min": "jax.ops.segment_min",
    "segment_prod": "jax.ops.segment_prod",
}
# Kinds under a name of the catalog's, whose arguments are not those of JAX's function.
_NAMED_HERE = ("norm2",)
# Kinds whose results are floats, whatever they are given; those of the others have its type.
_ALWAYS_FLOAT = (
    "mean", "var", "std", "norm2", "logsumexp", "logcumsumexp", "softmax", "log_softmax",
)  # fmt: skip

# Arguments that are called otherwise in jax.ops.
NAMES = {"input": "data", "sorted": "indices_are_sorted"}

# jax.numpy flattens along with its scans, where axis is None; jax.nn takes several axes.
_FLATTENS = {"parse": parse.optional_integer, "doc": "The axis; None flattens the array first."}
_SEVERAL = {"parse": parse.axes, "doc": "The axis, or several; None means all of them."}
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
        "doc": "Number of segments; default: the largest id plus one, not known under jit.",
    },
    "sorted": {
        "is_positional": True,
        "doc": "Promises that ids ascend, which saves sorting them; not checked.",
    },
    "out_of_range": {
        "default": "drop",
        "doc": 'What to do with an id outside [0, num_segments): "drop" its row, or "raise", which '
        "needs ids that are known, so not under jit.",
    },
    "correction": {"default": None, "doc": "Another name for ddof; give one of them."},
}
_DDOF = Parameter("ddof", parse.correction, 0, doc="What is subtracted from the count.")


def mesh_axes(value: Any, what: str) -> Any:
    """Names of a mesh's axes, which JAX looks at."""
    return value


parse.KINDS[mesh_axes] = parse.Kind("", "str | tuple[str, ...] | None", "str?")
_AXIS_NAME = Parameter(
    "axis_name",
    mesh_axes,
    None,
    doc="Inside jax.shard_map: the mesh axis, or axes, over which the op's axis, or rows of "
    "segments, are cut.",
)
_UNIQUE = Parameter(
    "unique_indices", parse.flag, False, is_positional=True, doc="Accepted, but has no effect."
)
_BUCKET_SIZE = Parameter(
    "bucket_size",
    parse.optional_count,
    None,
    is_positional=True,
    doc="Accepted, but has no effect: sums are in float64.",
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
    doc='None, "drop" or "fill": rows whose id is out of range are dropped. Others are refused.',
)
# Reductions that jax.numpy begins from a value of the caller's.
BEGINS = {"sum": jnp.add, "prod": jnp.multiply, "max": jnp.maximum, "min": jnp.minimum}
_INITIAL = Parameter(
    "initial", parse.optional_real, None, doc="A scalar to start the reduction from."
)


# What JAX's functions take and kernels do not know of; a call with it is JAX's own.
_DOCS = {
    "dtype": "Type to cast the input to first; if it is not a float, JAX does the whole call.",
    "out": "Not supported by JAX, nor here.",
    "promote_integers": "Whether small integers are summed in a wider type, by JAX itself.",
    "b": "Factors of the exponentials. With these, JAX does the call itself.",
    "return_sign": "Also return the sign. Then JAX does the call itself.",
}


_HINTS = {
    "dtype": "dtype | None",
    "out": "None",
    "promote_integers": "bool",
    "b": "array | None",
    "return_sign": "bool",
    "mean": "array | None",
}


def as_given(value: Any, what: str) -> Any:
    """What an argument is that goes to JAX as it came."""
    return value


parse.KINDS[as_given] = parse.Kind("", "Any", "str?")


def theirs(kind: str) -> Callable[..., Any] | None:
    """JAX's function of a kind, if its arguments are ours too."""
    if kind not in HOMES or kind in _NAMED_HERE:
        return None
    found: Any = jax
    for name in HOMES[kind].split(".")[1:]:
        found = getattr(found, name)
    function: Callable[..., Any] = found
    return function


def names_of(op: Op) -> dict[str, str]:
    """Arguments of an op that JAX's own function calls otherwise; the first one is ``a`` in
    jax.numpy and ``operand`` in jax.lax."""
    own = theirs(op.kind)
    if own is None:
        return NAMES
    first = next(iter(inspect.signature(own).parameters))
    return {**NAMES, op.inputs[0]: first}


def row_in_jax(pair: Pair) -> Op:
    """The forward row of a pair with all parameters, as JAX calls them and with its defaults.

    What JAX's function takes by position is taken so, in its order; arguments of its own are there.
    """
    op = pair.forward
    named = names_of(op)
    reads = tuple(replace(o, name=named.get(o.name, o.name)) for o in op.reads)
    return replace(op, reads=reads, parameters=tuple(_parameters(pair)))


def signature(row: Op) -> list[inspect.Parameter]:
    """The arguments of a function after its required operands: those of JAX's own, in its order,
    and those of the catalog, by keyword."""
    optional = {o.name: None for o in row.reads if o.optional}
    known = optional | {p.name: p.default for p in row.parameters}
    own = theirs(row.kind)
    first: list[str] = []
    if own is not None:
        held = inspect.signature(own).parameters.values()
        first = [p.name for p in held if p.kind is p.POSITIONAL_OR_KEYWORD and p.name in known]
    else:
        first = [o.name for o in row.reads if o.optional and o.role is Role.IDS]
        first += [p.name for p in row.parameters if p.is_positional and p.name not in first]
    found = []
    for name in (*first, *(n for n in known if n not in first)):
        kind = _POSITIONAL if name in first else _KEYWORD
        default = inspect.Parameter.empty if known[name] is REQUIRED else known[name]
        found.append(inspect.Parameter(name, kind, default=default))
    return sorted(found, key=lambda p: p.kind is _KEYWORD and p.default is not p.empty)


_POSITIONAL, _KEYWORD = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY


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
    cuts = any(o.role in (Role.IDS, Role.OFFSETS) for o in pair.forward.reads)
    if pair.forward.parameter("axis") is not None or cuts:
        yield _AXIS_NAME
    yield from only_theirs(pair)


def only_theirs(pair: Pair) -> list[Parameter]:
    """Arguments of JAX's function that the catalog does not have."""
    own = theirs(pair.forward.kind)
    if own is None:
        return []
    named = names_of(pair.forward)
    served = {named.get(n, n) for n in (*pair.forward.inputs, *(p.name for p in pair.parameters))}
    served |= {p.name for p in (_DDOF, _UNIQUE, _BUCKET_SIZE, _MODE, _INITIAL)}
    _, *rest = inspect.signature(own).parameters.values()
    return [
        Parameter(p.name, as_given, p.default, doc=_DOCS.get(p.name, "JAX's own."))
        for p in rest
        if p.name not in served
    ]


def hint_of(parameter: Parameter) -> str:
    """What a parameter may be, in words."""
    own = parameter.parse is as_given
    return _HINTS.get(parameter.name, "object") if own else parameter.kind.hint


def is_whole(dtype: Any) -> bool:
    """Whether numbers of a type are integers, or bools, which count as such."""
    return bool(jnp.issubdtype(dtype, jnp.integer) or dtype == jnp.bool_)


def serves(kind: str, dtype: Any) -> bool:
    """Whether a kind is computed in floats for numbers of a type that is none of the four."""
    return is_whole(dtype) and (kind in _ALWAYS_FLOAT or kind not in HOMES)


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
