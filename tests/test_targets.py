"""Kernels for the target that Numba was told to compile for, which need not be this CPU."""

from __future__ import annotations

from scripts import run_script

# Every finite float16, read and written.
HALVES = """
import hashlib
import numpy as np
import pullback as pb

bits = np.arange(2**16, dtype="u2").view("f2")
x = bits[np.isfinite(bits)].reshape(-1, 32)
results = pb.lerp(x, x[::-1], 0.25), pb.sum(x, axis=0)
print([hashlib.sha256(r.tobytes()).hexdigest() for r in results])
"""


def test_float16_without_instructions_for_it():
    assert run_script(HALVES, NUMBA_CPU_NAME="generic") == run_script(HALVES)
