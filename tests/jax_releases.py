"""What lies elsewhere, or is not there, in the oldest releases of JAX that are allowed."""

from __future__ import annotations

import jax

if hasattr(jax, "enable_x64"):
    enable_x64 = jax.enable_x64
else:
    from jax.experimental import enable_x64  # noqa: F401

if hasattr(jax, "shard_map"):
    shard_map = jax.shard_map
else:
    from functools import partial

    from jax.experimental.shard_map import shard_map as _checking

    # There it asks primitives for a rule of replication, which it has for its own alone.
    shard_map = partial(_checking, check_rep=False)
