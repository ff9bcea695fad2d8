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

import importlib.util
from collections.abc import Callable
from typing import Any

if importlib.util.find_spec("torch") is None:
    raise ModuleNotFoundError("pullback.torch needs PyTorch: pip install torch", name="torch")

from ..core.catalog import OPS, catalog
from . import functional, linalg, pyg
from .composed import max, min, norm, std_mean, var_mean
from .functions import make_function
from .patching import Patch, patch

_KINDS = dict.fromkeys(op.kind for op in catalog())
_FUNCTIONS: dict[str, Callable[..., Any]] = {f.__name__: f for f in map(make_function, _KINDS)}
globals().update(_FUNCTIONS)

__all__ = [
    "Patch",
    "functional",
    "linalg",
    "max",
    "min",
    "norm",
    "patch",
    "pyg",
    "std_mean",
    "var_mean",
    *_FUNCTIONS,
]


def __getattr__(name: str) -> Any:
    """The function of a kind that was added to the catalog later."""
    if name in OPS and OPS[name].direction == "forward":
        return make_function(name)
    raise AttributeError(f"module 'pullback.torch' has no attribute {name!r}")
