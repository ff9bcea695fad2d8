"""Kernels for a CPU that the environment names, which need not be this one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from scripts import SOURCE, run_script

ROOT = Path(__file__).resolve().parents[1]

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
    assert run_script(HALVES, PULLBACK_CPU="generic") == run_script(HALVES)


def test_kernels_for_another_machine(tmp_path):
    """Compiled here, run nowhere: every file holds an object file of AArch64.

    The backward makes its saves by the forward function, whose second call takes a shorter way.
    """
    tool = ROOT / "tools" / "cross_compile.py"
    machine = ("aarch64-unknown-linux-gnu", "generic", "+neon")
    told = ("check", "--digest", "norm2", "--dtypes", "f64")
    subprocess.run(
        [sys.executable, "-W", "ignore", tool, *machine, *told],
        env={**os.environ, "PYTHONPATH": str(SOURCE), "PULLBACK_CACHE_DIR": str(tmp_path)},
        stdout=subprocess.DEVNULL,
        check=True,
    )
    kept = [path.read_bytes() for path in tmp_path.glob("*/*.kernel")]
    for op in (b"('norm2-", b"('norm2_backward-"):
        assert len([data for data in kept if op in data]) == 1
    for data in kept:
        header = data[data.index(b"\x7fELF") :]
        assert int.from_bytes(header[18:20], "little") == 183
