"""Arguments as torch would take them: what torch refuses is refused before any cache is asked.

A cache compares by value, and to Python 1, 1.0 and True are one key: without these checks the
answer to a wrong argument would depend on the calls before.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from numbers import Real
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.overrides import is_tensor_like

from ..core import parse
from ..core.declare import Parameter
from ..errors import UnsupportedError


def refuse(function: str, argument: str, expected: str, value: Any) -> NoReturn:
    """Raise torch's error for an argument of the wrong type."""
    got = type(value).__name__
    raise TypeError(f"{function}(): argument '{argument}' must be {expected}, not {got}")


def check_tensor(function: str, argument: str, value: Any) -> None:
    """Refuse what is not a tensor nor stands for one."""
    if not is_tensor_like(value):
        refuse(function, argument, "Tensor", value)


def check_dtype(function: str, value: Any) -> None:
    """Refuse what is not a dtype; ``float`` and its like stand for one in torch too."""
    if not isinstance(value, torch.dtype) and value not in (bool, int, float, complex):
        refuse(function, "dtype", "torch.dtype", value)


def missing(function: str, argument: str) -> NoReturn:
    """Raise for an argument that is wanted."""
    raise TypeError(f"{function}(): missing required argument {argument!r}")


def one_of(function: str, argument: str, value: Any, alias: str, other: Any) -> Any:
    """The value of an argument that was given by its other name."""
    if value is not None and value is not False:
        raise TypeError(f"{function}(): takes either {argument!r} or {alias!r}, not both")
    return other


def bool_of(function: str, argument: str, value: Any) -> bool:
    """True or False, for a flag that torch has."""
    if type(value) is not bool:
        refuse(function, argument, "bool", value)
    return value


def int_of(function: str, argument: str, value: Any, expected: str = "int") -> Any:
    """An integer of any library, or a tensor that holds one; no bool."""
    if isinstance(value, torch.SymInt):
        return value
    if isinstance(value, Tensor):
        whole = value.dim() == 0 and value.dtype in _WHOLE
    else:
        whole = not isinstance(value, bool) and hasattr(value, "__index__")
    if not whole:
        refuse(function, argument, expected, value)
    return operator.index(value)


_WHOLE = frozenset({torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64})


def dims_of(function: str, argument: str, dim: Any) -> Any:
    """Dims as an int, a tuple or None; as in torch, () means all."""
    if dim is None or type(dim) is int:
        return dim
    expected = "int, tuple of ints or None"
    if isinstance(dim, Sequence) and not isinstance(dim, (str, bytes)):
        return tuple([int_of(function, argument, k, expected) for k in dim]) or None
    return int_of(function, argument, dim, expected)


def number_of(function: str, argument: str, value: Any) -> Any:
    """A real number of any library, or a tensor that holds one."""
    if type(value) is int or type(value) is float:  # to ask for Real takes a microsecond
        return value
    if isinstance(value, Tensor) and value.dim() == 0 and not value.is_complex():
        return value.item()
    if not isinstance(value, (Real, torch.SymInt, torch.SymFloat)):
        refuse(function, argument, "number", value)
    return value


def corrected(function: str, dim: Any, unbiased: Any, correction: Any) -> tuple[Any, Any]:
    """`dim` and `correction`, from any of torch's forms.

    ``std(x, False)`` means ``unbiased``, ``std(x, 1, False)`` too; ``unbiased`` stands for a
    correction of 1 or 0, and no correction for 1.
    """
    if type(dim) is bool and unbiased is None:
        dim, unbiased = None, dim
    if unbiased is not None:
        bool_of(function, "unbiased", unbiased)
        if correction is not None:
            raise TypeError(f"{function}(): takes either 'unbiased' or 'correction', not both")
        return dim, int(unbiased)
    return dim, 1 if correction is None else correction


# How torch takes what it has; any other parameter is parsed as everywhere.
_TAKEN: dict[Callable[..., Any], Callable[..., Any]] = {
    parse.axis: int_of,
    parse.axes: dims_of,
    parse.integer: int_of,
    parse.count: int_of,
    parse.real: number_of,
    parse.correction: number_of,
}
_TAKEN_OR_NONE: dict[Callable[..., Any], Callable[..., Any]] = {
    parse.optional_integer: int_of,
    parse.optional_count: int_of,
    parse.optional_real: number_of,
}


def value_of(function: str, argument: str, parameter: Parameter, value: Any) -> Any:
    """The value of a parameter that torch calls ``argument``."""
    if parameter.name != argument and parameter.parse is parse.flag:
        return bool_of(function, argument, value)
    taken = _TAKEN.get(parameter.parse)
    if taken is None and parameter.parse in _TAKEN_OR_NONE:
        if value is None:
            return None
        taken = _TAKEN_OR_NONE[parameter.parse]
    if taken is not None:
        value = taken(function, argument, value)
        return float(value) if parameter.kind.usual == "float" else value
    value = parameter.parse(value, argument)
    if parameter.choices and value not in parameter.choices:
        names = ", ".join(map(str, parameter.choices))
        raise UnsupportedError(f"{argument}: expected one of {names}, got {value!r}")
    return value
