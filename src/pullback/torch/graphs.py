"""What torch.compile is told of functions here, without loading it: that takes a second."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, TypeVar

import torch

_Function = TypeVar("_Function", bound=Callable[..., Any])

_waiting: list[Callable[..., Any]] = []


def constant(function: _Function) -> _Function:
    """``torch.compiler.assume_constant_result``: a call in a graph is its result."""
    if "torch._dynamo" in sys.modules:
        marked: _Function = torch.compiler.assume_constant_result(function)
        return marked
    # All that it does; a test compares.
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


def whole(function: _Function) -> _Function:
    """``torch.compiler.allow_in_graph`` from the next :func:`are_whole` on."""
    _waiting.append(function)
    return function


@constant
def are_whole() -> bool:
    """Tell torch.compile, which is reading the caller, of functions that it is not to look into."""
    while _waiting:
        torch.compiler.allow_in_graph(_waiting.pop())
    return True
