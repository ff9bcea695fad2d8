"""PyTorch functions whose forward and backward run on pullback's kernels.

torch's names, arguments and results: change the import and keep the code.

>>> import torch, pullback.torch as pt
>>> x = torch.zeros(3, requires_grad=True)
>>> pt.logcumsumexp(x, dim=0).sum().backward()
>>> x.grad
tensor([1.8333, 0.8333, 0.3333])

Differentiable any number of times, and right under torch.func, torch.compile, export, autocast and
the rest: where a kernel cannot be used, torch's own function is. :func:`patch` routes torch's
functions here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..core.catalog import OPS, catalog
from . import pyg
from .counterparts import COUNTERPARTS
from .functions import make_function
from .patching import Patch, patch

_KINDS = dict.fromkeys(op.kind for op in catalog())
_FUNCTIONS: dict[str, Callable[..., Any]] = {f.__name__: f for f in map(make_function, _KINDS)}
globals().update(_FUNCTIONS)
# Kinds whose own name means something else in torch.
_RENAMED = {kind: torch_has.name for kind, torch_has in COUNTERPARTS.items() if torch_has.name}

__all__ = ["Patch", "patch", "pyg", *_FUNCTIONS]


def __getattr__(name: str) -> Any:
    """The function of a kind that was added to the catalog later."""
    if name in _RENAMED:
        raise AttributeError(
            f"module 'pullback.torch' has no attribute {name!r}: torch.{name}, with indices and a "
            f"binary form, is not served; the extreme alone is pullback.torch.{_RENAMED[name]}"
        )
    if name in OPS and OPS[name].direction == "forward":
        return make_function(name)
    raise AttributeError(f"module 'pullback.torch' has no attribute {name!r}")
