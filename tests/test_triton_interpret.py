"""Runs ``triton_suite.py`` in processes of its own, interpreted where there is no GPU.

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
# Every test of the suite belongs to one group; each takes about as long as the others.
GROUPS = {
    "edges": "test_edges and f32",
    "edges of other types": "test_edges and not f32",
    "extents": "test_extents and not 1025",
    "extents 1025": "test_extents and 1025",
    "schedules": "test_schedules or test_reversed or test_few or test_workspace",
}
GROUPS["the rest"] = "not (" + " or ".join(f"({g})" for g in GROUPS.values()) + ")"


@pytest.mark.parametrize("group", GROUPS)
def test_suite(group):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE), *sys.path])}
    if not torch.cuda.is_available():
        environment["TRITON_INTERPRET"] = "1"
    command = [
        *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"),
        *(str(HERE / "triton_suite.py"), "-k", GROUPS[group]),
    ]
    # One process takes one core: NumPy's and torch's own threads would fight for it.
    environment |= {"OMP_NUM_THREADS": "1", "PYTEST_ADDOPTS": ""}
    done = subprocess.run(command, env=environment, cwd=HERE, capture_output=True, text=True)
    output = done.stdout + done.stderr
    assert done.returncode == 0, output[-6000:]
    assert int(re.search(r"(\d+) passed", output)[1]) > 0
