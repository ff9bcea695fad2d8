"""Arguments as torch would take them: what torch refuses is refused before any cache is asked.

A cache compares by value, and to Python 1, 1.0 and True are one key: without these checks the
answer to a wrong argument would depend on the calls before.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from numbers import Real
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor
from torch.overrides import is_tensor_like

from ..core.vocabulary import OutOfRange, Ties, parse_enum
from ..errors import InvalidProblemError, UnsupportedError


def refuse(function: str, argument: str, expected: str, value: Any) -> NoReturn:
    """Raise torch's error for an argument of the wrong type."""
    got = type(value).__name__
    raise TypeError(f"{function}(): argument '{argument}' must be {expected}, not {got}")


def check_tensor(function: str, argument: str, value: Any) -> None:
    """Refuse what is not a tensor nor stands for one."""
    if not is_tensor_like(value):
        refuse(function, argument, "Tensor", value)


def check_bool(function: str, argument: str, value: Any) -> None:
    """Refuse what is not True or False."""
    if type(value) is not bool:
        refuse(function, argument, "bool", value)


def check_dtype(function: str, value: Any) -> None:
    """Refuse what is not a dtype; ``float`` and its like stand for one in torch too."""
    if not isinstance(value, torch.dtype) and value not in (bool, int, float, complex):
        refuse(function, "dtype", "torch.dtype", value)


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


def dims_of(function: str, dim: Any) -> Any:
    """Dims as an int, a tuple or None; as in torch, () means all."""
    if dim is None or type(dim) is int:
        return dim
    expected = "int, tuple of ints or None"
    if isinstance(dim, Sequence) and not isinstance(dim, (str, bytes)):
        return tuple([int_of(function, "dim", k, expected) for k in dim]) or None
    return int_of(function, "dim", dim, expected)


def flag_of(argument: str, value: Any) -> bool:
    """True or False for a parameter that torch does not have."""
    if not isinstance(value, (bool, np.bool_)):
        raise InvalidProblemError(f"{argument}: expected True or False, got {value!r}")
    return bool(value)


def policy_of(given: Any) -> str:
    """What becomes of ids out of range, in the spelling of the catalog."""
    return parse_enum(OutOfRange, given, "out_of_range").value


def ties_of(given: Any, known: tuple[str, ...]) -> str:
    """A rule for ties, in the spelling of the catalog."""
    ties = parse_enum(Ties, given, "ties").value
    if ties not in known:
        raise UnsupportedError(f"ties: expected one of {', '.join(known)}, got {given!r}")
    return ties


def corrected(function: str, dim: Any, unbiased: Any, correction: Any) -> tuple[Any, Any]:
    """`dim` and `correction` of var and std, from any of torch's forms.

    ``std(x, False)`` means ``unbiased``, ``std(x, 1, False)`` too; ``unbiased`` stands for a
    correction of 1 or 0, and no correction for 1.
    """
    if type(dim) is bool and unbiased is None:
        dim, unbiased = None, dim
    if unbiased is not None:
        check_bool(function, "unbiased", unbiased)
        if correction is not None:
            raise TypeError(f"{function}(): takes either 'unbiased' or 'correction', not both")
        return dim, int(unbiased)
    return dim, 1 if correction is None else number_of(function, "correction", correction)


def number_of(function: str, argument: str, value: Any) -> Any:
    """A real number of any library, or a tensor that holds one."""
    if type(value) is int or type(value) is float:  # to ask for Real takes a microsecond
        return value
    if isinstance(value, Tensor) and value.dim() == 0 and not value.is_complex():
        return value.item()
    if not isinstance(value, (Real, torch.SymInt, torch.SymFloat)):
        refuse(function, argument, "number", value)
    return value
