"""Cox regression in JAX: how features change the risk of an event, from times and censoring alone.

The partial likelihood compares each patient who had an event with everybody who was still at risk
then. With patients in order of time those are the ones from there to the end, so all its
denominators are one reverse logcumsumexp.

    python examples/cox_regression_jax.py
"""

from __future__ import annotations

import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

import pullback.jax as pj

TRUTH = np.array([0.8, -0.5, 0.3, 0.0, -1.0], np.float32)


def patients(count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Features and whether the event was seen, in order of time; a third is censored."""
    random = np.random.default_rng(seed)
    features = random.standard_normal((count, TRUTH.size)).astype(np.float32)
    event = random.exponential(np.exp(-features @ TRUTH))
    censored = random.exponential(2.0, count)
    order = np.argsort(np.minimum(event, censored))
    return features[order], (event <= censored)[order].astype(np.float32)


def partial_likelihood(scan: Callable[[jax.Array], jax.Array]) -> Callable[..., jax.Array]:
    """The negative log partial likelihood per event, with a given reverse logcumsumexp."""

    def loss(coefficients: jax.Array, features: jax.Array, seen: jax.Array) -> jax.Array:
        risk = features @ coefficients
        return -jnp.sum(seen * (risk - scan(risk))) / jnp.sum(seen)

    return loss


def fit(features: jax.Array, seen: jax.Array, steps: int) -> tuple[jax.Array, list[float]]:
    """Newton's method: the Hessian comes from the same function."""
    loss = partial_likelihood(lambda risk: pj.logcumsumexp(risk, reverse=True))

    @jax.jit
    def step(coefficients: jax.Array) -> tuple[jax.Array, jax.Array]:
        value, slope = jax.value_and_grad(loss)(coefficients, features, seen)
        curvature = jax.hessian(loss)(coefficients, features, seen)
        return coefficients - jnp.linalg.solve(curvature, slope), value

    coefficients, losses = jnp.zeros(TRUTH.size, jnp.float32), []
    for _ in range(steps):
        coefficients, value = step(coefficients)
        losses.append(float(value))
    return coefficients, losses


def gradient_time(scan: Callable[[jax.Array], jax.Array], *data: jax.Array) -> float:
    """Milliseconds of one gradient, the least of some."""
    gradient = jax.jit(jax.grad(partial_likelihood(scan)))
    start = jnp.zeros(TRUTH.size, jnp.float32)
    jax.block_until_ready(gradient(start, *data))
    times = []
    for _ in range(7):
        began = time.perf_counter()
        jax.block_until_ready(gradient(start, *data))
        times.append(time.perf_counter() - began)
    return 1e3 * min(times)


def main(count: int = 200_000, steps: int = 6) -> list[float]:
    features, seen = (jnp.asarray(a) for a in patients(count))
    coefficients, losses = fit(features, seen, steps)
    for number, value in enumerate(losses):
        print(f"step {number}  loss {value:.6f}")
    print("found", np.round(np.asarray(coefficients), 3), "true", TRUTH)
    ours = gradient_time(lambda r: pj.logcumsumexp(r, reverse=True), features, seen)
    own = gradient_time(lambda r: jax.lax.cumlogsumexp(r, reverse=True), features, seen)
    print(f"one gradient: pullback {ours:.2f} ms, jax.lax.cumlogsumexp {own:.2f} ms")
    return losses


if __name__ == "__main__":
    main()
