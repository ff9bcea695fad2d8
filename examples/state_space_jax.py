"""A diagonal state-space layer in JAX: h[t] = a[t]·h[t−1] + b[t] in every channel, gates from x.

The task is to recall: most of the sequence is noise, and at each step the net must name the last
value that came with a mark. In JAX the recurrence is usually written with
``jax.lax.associative_scan``, which goes over the memory about log2(length) times.

    python examples/state_space_jax.py
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from timing import compare

import pullback.jax as pj

Recurrence = Callable[[jax.Array, jax.Array], jax.Array]
Tree = dict[str, jax.Array]


def sequences(count: int, length: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """(value, mark) at every step, and the value that came with the last mark."""
    random = np.random.default_rng(seed)
    value = random.uniform(-1, 1, (count, length)).astype(np.float32)
    mark = random.random((count, length)) < 0.1
    mark[:, 0] = True
    place = np.maximum.accumulate(np.where(mark, np.arange(length), 0), axis=1)
    return np.stack([value, mark], -1).astype(np.float32), np.take_along_axis(value, place, 1)


def ours(a: jax.Array, b: jax.Array) -> jax.Array:
    return pj.linear_recurrence(a, b, axis=1)


def own(a: jax.Array, b: jax.Array) -> jax.Array:
    """Two steps as one, by ``jax.lax.associative_scan``."""

    def joined(first, later):
        return first[0] * later[0], later[0] * first[1] + later[1]

    return jax.lax.associative_scan(joined, (a, b), axis=1)[1]


def initial_weights(channels: int) -> Tree:
    random = np.random.default_rng(0)
    shapes = {"gate": (2, channels), "value": (2, channels), "mix": (channels, 1)}
    weights = {n: random.standard_normal(s) / np.sqrt(s[0]) for n, s in shapes.items()}
    biases = {f"{n}_bias": np.zeros(s[1]) for n, s in shapes.items()}
    return {n: jnp.asarray(w, jnp.float32) for n, w in {**weights, **biases}.items()}


def loss_with(recurrence: Recurrence) -> Callable[..., jax.Array]:
    def loss(w: Tree, x: jax.Array, wanted: jax.Array) -> jax.Array:
        a = jax.nn.sigmoid(x @ w["gate"] + w["gate_bias"])
        states = recurrence(a, (1 - a) * (x @ w["value"] + w["value_bias"]))
        found = (states @ w["mix"] + w["mix_bias"])[..., 0]
        return jnp.mean((found - wanted) ** 2)

    return loss


def trainer(recurrence: Recurrence, rate: float = 0.05) -> Callable[..., tuple]:
    """One step of Adam, compiled."""
    loss = loss_with(recurrence)

    @jax.jit
    def step(number, w, mean, square, x, wanted):
        value, slope = jax.value_and_grad(loss)(w, x, wanted)
        mean = {n: 0.9 * mean[n] + 0.1 * slope[n] for n in w}
        square = {n: 0.999 * square[n] + 0.001 * slope[n] ** 2 for n in w}
        scale = rate * jnp.sqrt(1 - 0.999**number) / (1 - 0.9**number)
        w = {n: w[n] - scale * mean[n] / (jnp.sqrt(square[n]) + 1e-8) for n in w}
        return w, mean, square, value

    return step


def main(count: int = 16, length: int = 1024, channels: int = 32, steps: int = 80) -> list[float]:
    """Train, print, and return the losses."""
    step = trainer(ours)
    w = initial_weights(channels)
    mean, square = ({n: jnp.zeros_like(v) for n, v in w.items()} for _ in range(2))
    losses = []
    for number in range(1, steps + 1):
        data = sequences(count, length, number)
        w, mean, square, value = step(float(number), w, mean, square, *data)
        losses.append(float(value))
    for number in (*range(0, steps, max(1, steps // 5)), steps - 1):
        print(f"step {number:3}  loss {losses[number]:.6f}")
    state = (1.0, w, mean, square, *(jnp.asarray(v) for v in sequences(count, length, 0)))
    theirs = trainer(own)
    compare(
        f"a step of training on {count} sequences of {length}",
        lambda: jax.block_until_ready(step(*state)),
        lambda: jax.block_until_ready(theirs(*state)),
        "jax.lax.associative_scan",
    )
    return losses


if __name__ == "__main__":
    main()
