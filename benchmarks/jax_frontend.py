"""Forward and backward through pullback.jax beside JAX's own functions, in the same run.

    python benchmarks/jax_frontend.py [op ...] [--rounds 7] [--shape 4096,4096] [--json FILE]

Each op runs value and gradient under one jit, on (1, 128) and on a large matrix of float32, along
the last axis. The contenders take turns; times are the least over the rounds. Before anything is
timed the two must agree.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import pullback as pb
import pullback.jax as pj
from pullback.bench.timing import interleave

WEIGHT = 0.25
OWN: dict[str, Callable[..., Any]] = {
    "cumsum": lambda x: jnp.cumsum(x, axis=-1),
    "cumprod": lambda x: jnp.cumprod(x, axis=-1),
    "cummax": lambda x: jax.lax.cummax(x, axis=1),
    "cummin": lambda x: jax.lax.cummin(x, axis=1),
    "logcumsumexp": lambda x: jax.lax.cumlogsumexp(x, axis=1),
    "sum": lambda x: jnp.sum(x, axis=-1),
    "mean": lambda x: jnp.mean(x, axis=-1),
    "max": lambda x: jnp.max(x, axis=-1),
    "min": lambda x: jnp.min(x, axis=-1),
    "prod": lambda x: jnp.prod(x, axis=-1),
    "norm2": lambda x: jnp.linalg.norm(x, axis=-1),
    "logsumexp": lambda x: jax.nn.logsumexp(x, axis=-1),
    "var": lambda x: jnp.var(x, axis=-1),
    "std": lambda x: jnp.std(x, axis=-1),
    "softmax": lambda x: jax.nn.softmax(x, axis=-1),
    "log_softmax": lambda x: jax.nn.log_softmax(x, axis=-1),
    "lerp": lambda a, b: a + WEIGHT * (b - a),
    "segment_sum": jax.ops.segment_sum,
}


def contenders(name: str, shape: tuple[int, int]) -> tuple[dict[str, Callable[..., Any]], list]:
    """Ours and JAX's own as functions of the same arrays, and the arrays."""
    random = np.random.default_rng(0)
    # Near 1, so that a product of a whole row stays in the range of a float.
    arrays = [random.uniform(0.99, 1.01, shape).astype(np.float32)]
    ours: Callable[..., Any] = getattr(pj, name)
    if name == "lerp":
        arrays.append(arrays[0][::-1].copy())
        return {"pullback": lambda a, b: ours(a, b, WEIGHT), "jax": OWN[name]}, arrays
    if name == "segment_sum":
        rows, width = max(1, shape[0] * shape[1] // 64), 64
        arrays = [random.uniform(0.99, 1.01, (rows, width)).astype(np.float32)]
        segments = max(1, rows // 64)
        ids = jnp.asarray(random.integers(0, segments, rows).astype(np.int32))
        return {
            "pullback": lambda x: ours(x, ids, segments),
            "jax": lambda x: jax.ops.segment_sum(x, ids, segments),
        }, arrays
    return {"pullback": lambda x: ours(x, axis=-1), "jax": OWN[name]}, arrays


def both_ways(function: Callable[..., Any]) -> Callable[..., Any]:
    """Value and gradients under one jit."""

    def run(cotangent: Any, *arrays: Any) -> Any:
        value, pull = jax.vjp(function, *arrays)
        return value, pull(cotangent)

    return jax.jit(run)


def measure(name: str, shape: tuple[int, int], rounds: int) -> dict[str, float]:
    """Seconds of the contenders on one shape, after a check that they agree."""
    functions, arrays = contenders(name, shape)
    arrays = [jnp.asarray(a) for a in arrays]
    output = jax.eval_shape(functions["jax"], *arrays)
    cotangent = jnp.asarray(
        np.random.default_rng(1).uniform(0.5, 1.5, output.shape).astype(np.float32)
    )
    compiled = {who: both_ways(f) for who, f in functions.items()}
    found = {who: f(cotangent, *arrays) for who, f in compiled.items()}
    for ours, own in zip(
        jax.tree.leaves(found["pullback"]), jax.tree.leaves(found["jax"]), strict=True
    ):
        # JAX accumulates in float32: its error grows with the length of a row.
        scale = float(jnp.max(jnp.abs(own)))
        np.testing.assert_allclose(ours, own, rtol=0, atol=1e-6 * shape[1] * scale)
    del found
    calls = {
        who: lambda f=f: jax.block_until_ready(f(cotangent, *arrays)) for who, f in compiled.items()
    }
    times = interleave(calls, rounds, budget=30.0)
    return {who: t.best for who, t in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("ops", nargs="*", help="ops to run; all of them without any")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--shape", default="4096,4096", help="the large shape")
    parser.add_argument("--json", help="also write the figures to a file")
    arguments = parser.parse_args()
    names = arguments.ops or [op.name for op in pb.catalog() if op.direction == "forward"]
    rows, columns = (int(n) for n in arguments.shape.split(","))
    large = (rows, columns)
    print(f"jax {jax.__version__}, {pb.get_num_threads()} threads, float32, value and gradient")
    print(f"{'op':14}{'(1, 128), µs':>22}{f'{large}, ms':>26}")
    print(f"{'':14}{'pullback':>11}{'jax':>11}{'pullback':>13}{'jax':>9}{'times':>8}")
    figures = {}
    for name in names:
        small = measure(name, (1, 128), arguments.rounds)
        big = measure(name, large, arguments.rounds)
        figures[name] = {"(1, 128)": small, str(large): big}
        ratio = big["jax"] / big["pullback"]
        print(
            f"{name:14}{small['pullback'] * 1e6:11.1f}{small['jax'] * 1e6:11.1f}"
            f"{big['pullback'] * 1e3:13.1f}{big['jax'] * 1e3:9.1f}{ratio:8.2f}",
            flush=True,
        )
    ratios = [f[str(large)]["jax"] / f[str(large)]["pullback"] for f in figures.values()]
    print(f"geometric mean {math.exp(statistics.fmean(map(math.log, ratios))):.2f}")
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump(figures, file, indent=1)


if __name__ == "__main__":
    main()
