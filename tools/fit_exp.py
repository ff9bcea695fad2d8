"""Fit the polynomials of exp in ``cpu/codegen``: of float32 lanes, and of float64 ones.

    python tools/fit_exp.py                            singles.py
    python tools/fit_exp.py --type float64 --degree 7  elementary.py, for narrow results

exp(r) = 1 + r + r²·q(r) on |r| <= ln2/2. q is fitted so that the largest relative error of exp is
least (Lawson's reweighting of least squares, which comes as near to it as float32 can hold), and
its coefficients are rounded from the highest down, those below being fitted again to
what the rounding left. Prints the coefficients, highest first, and the error that is left.
"""

from __future__ import annotations

import argparse
import math
from typing import Any

import numpy as np
from mpmath import mp, mpf

mp.prec = 120


def fit(target: np.ndarray, r: np.ndarray, powers: list[int], weight: np.ndarray) -> np.ndarray:
    """Coefficients for these powers of r, the largest weighted error being least."""
    matrix = r[:, None] ** np.array(powers)
    lawson = np.full(len(r), 1.0 / len(r))
    best, least = np.zeros(len(powers)), math.inf
    for _ in range(200):
        root = np.sqrt(lawson) * weight
        found = np.linalg.lstsq(matrix * root[:, None], target * root, rcond=None)[0]
        error = np.abs(matrix @ found - target) * weight
        if error.max() < least:
            best, least = found, float(error.max())
        lawson *= error + 1e-300
        lawson /= lawson.sum()
    return best


def coefficients(degree: int, kind: Any, points: int = 2001) -> list[Any]:
    edge = float(mp.log(2) / 2) * (1 + 1e-6)
    r = edge * np.cos(np.pi * (np.arange(points) + 0.5) / points)
    exact = [mp.exp(mpf(float(t))) for t in r]
    pairs = [(e, mpf(float(t))) for e, t in zip(exact, r, strict=True)]
    q = np.array([float((e - 1 - t) / t**2) for e, t in pairs])
    weight = np.array([float(t**2 / e) for e, t in pairs])
    powers = list(range(degree - 1))
    rounded: list[Any] = []
    left = q
    while powers:
        found = fit(left, r, powers, weight)
        top = kind(found[-1])
        rounded.append(top)
        left = left - float(top) * r ** powers[-1]
        powers.pop()
    return rounded


def largest_error(rounded: list[Any], points: int = 20001) -> float:
    edge = float(mp.log(2) / 2)
    worst = mpf(0)
    for t in np.linspace(-edge, edge, points):
        q = mpf(0)
        for c in rounded:
            q = q * mpf(float(t)) + mpf(float(c))
        value, exact = 1 + mpf(float(t)) + mpf(float(t)) ** 2 * q, mp.exp(mpf(float(t)))
        worst = max(worst, abs(value / exact - 1))
    return float(worst)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--degree", type=int, default=6, help="degree of the whole polynomial")
    parser.add_argument("--type", choices=("float32", "float64"), default="float32")
    chosen = parser.parse_args()
    rounded = coefficients(chosen.degree, getattr(np, chosen.type))
    for c in rounded:
        print(float(c).hex())
    print(f"relative error 2**{math.log2(largest_error(rounded)):.2f}")


if __name__ == "__main__":
    main()
