"""Code follows the registers of a CPU; results do not."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from pullback.cpu.codegen.registers import registers

# The registers that code is made for: of AVX-512, AVX2, and SSE2.
FORCED = ["Registers(1, 32, True)", "Registers(2, 16, False)", "Registers(4, 16, False)"]

PROGRAM = """
import hashlib
import sys

import numpy as np

from pullback.cpu.codegen import fold, registers as module, sixteen
from pullback.cpu.codegen.registers import Registers
from pullback.cpu.loops import four_rows

forced = eval(sys.argv[1])
for place in (module, fold, sixteen, four_rows):
    place.registers = lambda: forced

import pullback as pb

rng = np.random.default_rng(0)
x = rng.standard_normal((37, 150)).astype("f4")
x[3, 5], x[4, 6], x[5, 7:9] = np.nan, np.inf, 0.0
found = hashlib.sha256()
for axis in (0, 1):
    for name in ("cummax", "cumprod", "softmax", "log_softmax", "prod", "max", "sum"):
        found.update(np.nan_to_num(getattr(pb, name)(x, axis)).tobytes())
    y = pb.prod(x, axis)
    found.update(np.nan_to_num(pb.prod_backward(y, x=x, y=y, axis=axis)).tobytes())
    found.update(np.nan_to_num(pb.cumprod_backward(x, x=x, axis=axis)).tobytes())
    found.update(np.nan_to_num(pb.cummax_backward(x, x=x, axis=axis)).tobytes())
print(found.hexdigest())
"""


def test_bytes_do_not_depend_on_registers(tmp_path):
    digests = set()
    for k, forced in enumerate(FORCED):
        command = [sys.executable, "-c", PROGRAM, forced]
        made = subprocess.run(
            command,
            env=_environment(tmp_path / str(k)),
            capture_output=True,
            text=True,
            check=True,
        )
        digests.add(made.stdout.strip())
    assert len(digests) == 1


@pytest.mark.parametrize(
    ("cpu", "expected"),
    [("haswell", (2, 16, False)), ("x86-64", (4, 16, False)), ("znver4", (1, 32, True))],
)
def test_what_llvm_is_asked(monkeypatch, cpu, expected):
    from pullback.cpu import loader

    if not loader._target().name.startswith("x86"):
        pytest.skip("names of x86 CPUs")
    monkeypatch.setenv("PULLBACK_CPU", cpu)
    monkeypatch.setenv("PULLBACK_CPU_FEATURES", "")
    machine = loader.target_machine.__wrapped__()
    monkeypatch.setattr("pullback.cpu.codegen.registers.target_machine", lambda: machine)
    found = registers.__wrapped__()
    assert (found.of_lanes, found.count, found.masks) == expected


def _environment(cache):
    return {**os.environ, "PULLBACK_CACHE_DIR": str(cache)}
