"""A function beside its gradient, with what the gradient needs kept for the caller."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cache
from typing import Any

from ..core.pair import pair_of
from ..core.problem import parsed
from ..errors import InvalidProblemError, UnsupportedError
from .functions import NAMED, function_named

# Of the library's own functions, which stay; to ask for one takes 15 microseconds.
_signature_of = cache(inspect.signature)


def vjp(
    function: Callable[..., Any], *arrays: Any, **parameters: Any
) -> tuple[Any, Callable[..., Any]]:
    """The result of a function, and a function that pulls gradients back through it.

    Parameters
    ----------
    function : callable
        One of pullback's forward functions.
    *arrays, **parameters
        Its arguments, and parameters that only its backward has, such as ``ties``.

    Returns
    -------
    y : array or tuple of arrays
        What the function returns.
    back : callable
        ``back(dy)``: the gradient with respect to the function's operand, or a tuple of them in the
        order of its backward. It takes a gradient for each result; those that are None, or left
        out at the end, count as zeros. ``out=`` is a buffer for the result.

    Examples
    --------
    >>> import numpy as np, pullback as pb
    >>> y, back = pb.vjp(pb.cumprod, np.array([2.0, 0.0, 4.0]))
    >>> back(np.ones(3))
    array([ 1., 10.,  0.])
    """
    op = NAMED.get(getattr(function, "__name__", ""))
    if op is None or function_named(op.name) is not function or op.direction != "forward":
        raise InvalidProblemError(
            f"function: expected a forward function of pullback, got {function!r}"
        )
    pair = pair_of(op.kind)
    if pair.backward is None:
        raise UnsupportedError(f"{op.name}: no gradient is defined for it")
    signature = _signature_of(function)
    known = signature.parameters
    later = {
        p.name: parsed(p, parameters.pop(p.name), p.name)
        for p in pair.backward.parameters
        if p.name in parameters and p.name not in known
    }
    given = signature.bind(*arrays, **parameters).arguments | later
    results = function(*arrays, **parameters)
    several = results if isinstance(results, tuple) else (results,)
    held = {**given, **dict(zip(op.outputs, several, strict=False))}
    backward = function_named(pair.backward.name)
    asked = _signature_of(backward).parameters
    lead = held[op.inputs[0]]
    held |= {"shape": tuple(lead.shape), "num_inputs": lead.shape[0] if lead.shape else 0}
    left = {"out", *pair.backward.spared}
    kept = {name: held[name] for name in asked if name in held and name not in left}
    pulled = {output: name for name, output in pair.cotangents.items()}

    def back(*gradients: Any, out: Any = None) -> Any:
        if len(gradients) > len(several):
            raise TypeError(f"back: expected {len(several)} gradients, got {len(gradients)}")
        named = {o: g for o, g in zip(op.outputs, gradients, strict=False) if g is not None}
        for output in named:
            if output not in pulled:
                raise UnsupportedError(f"{op.name}: no gradient flows back from {output}")
        return backward(**{pulled[o]: g for o, g in named.items()}, **kept, out=out)

    return results, back
