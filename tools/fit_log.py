"""Fit the polynomial of the float64 log in ``cpu/codegen/elementary.py``.

2·atanh(s) = s·(2 + R(s²)) on |s| <= 3 - 2·sqrt(2), R without a constant. Remez' exchange in 200
bits gives the polynomial whose largest relative error is least. Coefficients are rounded to float64
from the lowest up, those above being fitted again to what the rounding left.
Prints them, lowest first, and the error that is left, and the two parts of ln2.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from mpmath import mp, mpf

mp.prec = 200
Function = Callable[[Any], Any]
Numbers = list[Any]


def exchange(target: Function, weight: Function, powers: list[int], low: Any, high: Any) -> Numbers:
    """Coefficients of these powers whose largest weighted error on an interval is least."""
    count = len(powers) + 1
    nodes = [
        (low + high) / 2 - (high - low) / 2 * mp.cos(mp.pi * (k + mpf(1) / 2) / count)
        for k in range(count)
    ]
    grid = [low + (high - low) * (1 - mp.cos(mp.pi * k / 2000)) / 2 for k in range(2001)]
    values = [(x, target(x), weight(x)) for x in grid]
    found: Numbers = []
    for _ in range(12):
        rows = [[x**p for p in powers] + [(-1) ** k / weight(x)] for k, x in enumerate(nodes)]
        solved = mp.lu_solve(mp.matrix(rows), mp.matrix([target(x) for x in nodes]))
        found = list(solved)[:-1]
        errors = [
            (w * (sum(c * x**p for c, p in zip(found, powers, strict=True)) - t), x)
            for x, t, w in values
        ]
        nodes = _extremes(errors, count)
    return found


def _extremes(errors: Numbers, count: int) -> Numbers:
    """Where the error is largest between its changes of sign; of those the largest in a row."""
    runs: Numbers = []
    for error, x in errors:
        if runs and (runs[-1][0] > 0) == (error > 0):
            runs[-1] = max(runs[-1], (error, x), key=lambda pair: abs(pair[0]))
        else:
            runs.append((error, x))
    while len(runs) > count:
        runs.pop(0 if abs(runs[0][0]) < abs(runs[-1][0]) else -1)
    assert len(runs) == count, "the grid is too coarse for the exchange"
    return [x for _, x in runs]


def rounded(target: Function, weight: Function, count: int, low: Any, high: Any) -> list[float]:
    """Coefficients as float64, lowest power first."""
    kept: list[float] = []
    for k in range(count):

        def left(x: Any) -> Any:
            return target(x) - sum(mpf(c) * x**p for p, c in enumerate(kept))

        kept.append(float(exchange(left, weight, list(range(k, count)), low, high)[0]))
    return kept


def largest_error(
    kept: list[float], target: Function, weight: Function, low: Any, high: Any
) -> Any:
    points = [low + (high - low) * k / 5000 for k in range(5001)]
    return max(
        abs(weight(x) * (sum(mpf(c) * x**p for p, c in enumerate(kept)) - target(x)))
        for x in points
    )


def rest(z: Any) -> Any:
    """R(z)/z: what 2·atanh(s)/s is above 2, over z = s²."""
    if z < mpf(2) ** -60:
        return mpf(2) / 3 + 2 * z / 5
    s = mp.sqrt(z)
    return (2 * mp.atanh(s) / s - 2) / z


def weight(z: Any) -> Any:
    """What makes an error of R(z)/z one of 2·atanh(s), relative to it."""
    return z / 2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--terms", type=int, default=7, help="coefficients of R")
    high = (3 - 2 * mp.sqrt(2)) ** 2 * (1 + mpf(2) ** -20)
    low = high * mpf(2) ** -20
    kept = rounded(rest, weight, parser.parse_args().terms, low, high)
    for c in kept:
        print(c.hex())
    error = largest_error(kept, rest, weight, low, high)
    print(f"relative error 2**{float(mp.log(error, 2)):.2f}")
    ln2 = mp.log(2)
    first = float(mp.floor(ln2 * 2**32) / 2**32)
    print(f"ln2 = {first.hex()} + {float(ln2 - mpf(first)).hex()}")


if __name__ == "__main__":
    main()
