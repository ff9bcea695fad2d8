"""Differentiable JAX functions whose forward and backward run on pullback's CPU kernels.

``import pullback.jax as pj`` and use ``pj.cumsum``, ``pj.softmax`` and so on where ``jax.numpy``,
``jax.lax`` or ``jax.nn`` have the same name, with the same arguments.
"""

from __future__ import annotations

import importlib.util

if importlib.util.find_spec("jax") is None:
    raise ModuleNotFoundError("pullback.jax needs JAX: pip install jax", name="jax")

from .functions import FUNCTIONS

globals().update(FUNCTIONS)

__all__ = list(FUNCTIONS)
