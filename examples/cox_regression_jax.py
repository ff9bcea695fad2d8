"""Cox regression in JAX: how features change the risk of an event, from times and censoring alone.

The partial likelihood compares each patient who had an event with everybody who was still at risk
then. With patients in order of time those are the ones from there to the end, so all its
denominators are one reverse logcumsumexp.

Hospitals differ in how long patients are seen, so each is a stratum of its own: with patients in
order of hospital and time, the scan is cut into runs.

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


def patients(
    count: int, hospitals: int, seed: int = 0
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Features, whether the event was seen, where hospitals begin; a third is censored."""
    random = np.random.default_rng(seed)
    features = random.standard_normal((count, TRUTH.size)).astype(np.float32)
    hospital = random.integers(0, hospitals, count)
    slower = np.exp(random.standard_normal(hospitals))[hospital]
    event = slower * random.exponential(np.exp(-features @ TRUTH))
    censored = slower * random.exponential(2.0, count)
    order = np.lexsort((np.minimum(event, censored), hospital))
    begins = np.diff(hospital[order], prepend=-1) > 0
    return features[order], (event <= censored)[order].astype(np.float32), begins


Scan = Callable[[jax.Array, jax.Array], jax.Array]


def ours(risk: jax.Array, begins: jax.Array) -> jax.Array:
    return pj.logcumsumexp(risk, reverse=True, resets=begins)


def own(risk: jax.Array, begins: jax.Array) -> jax.Array:
    """A segmented scan by ``jax.lax.associative_scan``: a state that has a border takes no more."""

    def joined(first, later):
        (a, cut_a), (b, cut_b) = first, later
        return jnp.where(cut_b, b, jnp.logaddexp(a, b)), cut_a | cut_b

    behind = jnp.roll(begins, -1)
    return jax.lax.associative_scan(joined, (risk, behind), reverse=True)[0]


def partial_likelihood(scan: Scan) -> Callable[..., jax.Array]:
    """The negative log partial likelihood per event, with a given reverse logcumsumexp."""

    def loss(
        coefficients: jax.Array, features: jax.Array, seen: jax.Array, begins: jax.Array
    ) -> jax.Array:
        risk = features @ coefficients
        return -jnp.sum(seen * (risk - scan(risk, begins))) / jnp.sum(seen)

    return loss


def fit(data: tuple[jax.Array, ...], steps: int) -> tuple[jax.Array, list[float]]:
    """Newton's method: the Hessian comes from the same function."""
    loss = partial_likelihood(ours)

    @jax.jit
    def step(coefficients: jax.Array) -> tuple[jax.Array, jax.Array]:
        value, slope = jax.value_and_grad(loss)(coefficients, *data)
        curvature = jax.hessian(loss)(coefficients, *data)
        return coefficients - jnp.linalg.solve(curvature, slope), value

    coefficients, losses = jnp.zeros(TRUTH.size, jnp.float32), []
    for _ in range(steps):
        coefficients, value = step(coefficients)
        losses.append(float(value))
    return coefficients, losses


def gradient_time(scan: Scan, *data: jax.Array) -> float:
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


def main(count: int = 200_000, hospitals: int = 100, steps: int = 6) -> list[float]:
    data = tuple(jnp.asarray(a) for a in patients(count, hospitals))
    coefficients, losses = fit(data, steps)
    for number, value in enumerate(losses):
        print(f"step {number}  loss {value:.6f}")
    print("found", np.round(np.asarray(coefficients), 3), "true", TRUTH)
    mine, theirs = gradient_time(ours, *data), gradient_time(own, *data)
    print(
        f"one gradient: pullback {mine:.2f} ms, jax.lax.associative_scan {theirs:.2f} ms "
        f"({theirs / mine:.1f} times)"
    )
    return losses


if __name__ == "__main__":
    main()
