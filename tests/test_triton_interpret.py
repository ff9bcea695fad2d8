"""Runs the tests of Triton kernels in processes of their own, interpreted where there is no GPU.

Triton decides at import whether kernels are compiled or interpreted, so the suite cannot share a
process with the tests that compile.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")
torch = pytest.importorskip("torch")

HERE = Path(__file__).parent


@pytest.mark.parametrize("files", [("triton_suite.py",), ("triton_ops.py", "triton_plans.py")])
def test_in_the_interpreter(files):
    run(*files)


def run(*files: str) -> None:
    """Run files of tests in a process of their own."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE), *sys.path])}
    if not torch.cuda.is_available():
        environment["TRITON_INTERPRET"] = "1"
    command = [
        *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"),
        *(str(HERE / file) for file in files),
    ]
    # One process takes one core: NumPy's and torch's own threads would fight for it.
    environment |= {"OMP_NUM_THREADS": "1", "PYTEST_ADDOPTS": ""}
    done = subprocess.run(command, env=environment, cwd=HERE, capture_output=True, text=True)
    output = done.stdout + done.stderr
    assert done.returncode == 0, output[-6000:]
    assert int(re.search(r"(\d+) passed", output)[1]) > 0
