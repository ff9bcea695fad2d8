"""Volume rendering in JAX: fitting densities along rays to the colours the rays should show.

A sample with opacity a hides what lies behind it, so the light that reaches sample k is the product
of 1 − a over the samples before it: an exclusive cumprod. A wall has opacity 1, which makes the
product exactly 0 for everything behind it, and the gradient has to stay correct there.

    python examples/volume_rendering_jax.py
"""

from __future__ import annotations

import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

import pullback.jax as pj


def ours(clear: jax.Array) -> jax.Array:
    return pj.cumprod(clear, axis=-1, exclusive=True)


def own(clear: jax.Array) -> jax.Array:
    through = jnp.cumprod(clear[:, :-1], axis=-1)
    return jnp.concatenate([jnp.ones_like(clear[:, :1]), through], -1)


def scene(rays: int, samples: int) -> tuple[np.ndarray, np.ndarray]:
    """Colours at the samples, and what each ray should show: a disc before a wall."""
    depth = np.linspace(0.0, 1.0, samples, dtype=np.float32)
    across = np.linspace(-1.0, 1.0, rays, dtype=np.float32)
    colours = np.stack([1.0 - depth, depth, 0.5 + 0.0 * depth], -1)
    nearest = np.where(np.abs(across) < 0.5, 0.3, 0.8)
    target = colours[np.round(nearest * (samples - 1)).astype(int)]
    return colours.astype(np.float32), target.astype(np.float32)


def renderer(scan: Callable[[jax.Array], jax.Array]) -> Callable[..., jax.Array]:
    """Colours of the rays, with a given exclusive cumprod along the last axis."""

    def render(logits: jax.Array, colours: jax.Array) -> jax.Array:
        opacity = jax.nn.sigmoid(logits)
        wall = opacity.shape[-1] * 9 // 10  # nothing behind it is seen
        opacity = opacity.at[:, wall].set(1.0)
        return (opacity * scan(1.0 - opacity)) @ colours

    return render


def loss_with(scan: Callable[[jax.Array], jax.Array]) -> Callable[..., jax.Array]:
    render = renderer(scan)

    def loss(logits: jax.Array, colours: jax.Array, target: jax.Array) -> jax.Array:
        return jnp.mean((render(logits, colours) - target) ** 2)

    return loss


def fit(colours: jax.Array, target: jax.Array, steps: int) -> list[float]:
    """Gradient descent with momentum."""
    loss = loss_with(ours)
    rays, samples = target.shape[0], colours.shape[0]

    @jax.jit
    def run(logits: jax.Array) -> jax.Array:
        def step(state, _):
            logits, speed = state
            value, slope = jax.value_and_grad(loss)(logits, colours, target)
            speed = 0.9 * speed - 20.0 * rays * slope
            return (logits + speed, speed), value

        start = (logits, jnp.zeros_like(logits))
        return jax.lax.scan(step, start, length=steps)[1]

    return [float(v) for v in run(jnp.full((rays, samples), -3.0, jnp.float32))]


def gradient_time(scan: Callable[[jax.Array], jax.Array], *data: jax.Array) -> float:
    """Milliseconds of one gradient, the least of some."""
    gradient = jax.jit(jax.grad(loss_with(scan)))
    logits = jnp.full((data[1].shape[0], data[0].shape[0]), -3.0, jnp.float32)
    jax.block_until_ready(gradient(logits, *data))
    times = []
    for _ in range(7):
        began = time.perf_counter()
        jax.block_until_ready(gradient(logits, *data))
        times.append(time.perf_counter() - began)
    return 1e3 * min(times)


def main(rays: int = 4096, samples: int = 256, steps: int = 100) -> list[float]:
    colours, target = (jnp.asarray(a) for a in scene(rays, samples))
    losses = fit(colours, target, steps)
    for number in (*range(0, steps, max(1, steps // 5)), steps - 1):
        print(f"step {number:3}  loss {losses[number]:.6f}")
    clear = jnp.linspace(0.0, 1.0, rays * samples, dtype=jnp.float32).reshape(rays, samples)
    np.testing.assert_allclose(ours(clear), own(clear), rtol=1e-4, atol=1e-6)
    mine, theirs = gradient_time(ours, colours, target), gradient_time(own, colours, target)
    print(
        f"one gradient: pullback {mine:.2f} ms, jax.numpy.cumprod {theirs:.2f} ms "
        f"({theirs / mine:.1f} times)"
    )
    return losses


if __name__ == "__main__":
    main()
