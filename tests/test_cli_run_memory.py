"""``pullback run --memory``: the memory that the process occupies stays below."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import pullback as pb
from scripts import SOURCE

MEMORY = 256_000_000
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(SOURCE)}


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a raw file three times as large as MEMORY."""
    folder = tmp_path_factory.mktemp("large")
    piece = np.random.default_rng(0).standard_normal(4096 * 1024).astype(np.float32)
    with open(folder / "dy.bin", "wb") as file:
        while file.tell() < 3 * MEMORY:
            piece[0] += 1
            file.write(piece)
    return folder


@pytest.mark.skipif(sys.platform != "linux", reason="peak memory is read from /proc")
class TestMemory:
    """A raw file three times as large as the memory the process may occupy."""

    def measured(self, folder: Path, shape: str, axis: int) -> tuple[str, int]:
        """What the command says, and the peak of its resident memory as the system saw it."""
        command = ["run", "cumsum_backward", "--dy", "dy.bin", "--dtype", "f32", "--shape", shape,
                   "--axis", str(axis), "--out", "dx.bin", "--memory", str(MEMORY),
                   "--force"]  # fmt: skip
        code = (
            "import sys; from pullback.tools.cli import main; "
            f"code = 0\ntry:\n main({command!r}, prog_name='pullback')\n"
            "except SystemExit as e:\n code = e.code\n"
            "print(open('/proc/self/status').read().split('VmHWM:')[1].split()[0]); sys.exit(code)"
        )
        result = subprocess.run(
            [sys.executable, "-c", code],
            cwd=folder,
            env=ENVIRONMENT,
            capture_output=True,
            text=True,
            check=False,
        )
        assert result.returncode == 0, result.stderr
        said, peak = result.stdout.splitlines()
        return said, int(peak) * 1024

    @pytest.mark.parametrize(("rows", "axis"), [(4096, 1), (4096, 0), (1, 1)])
    def test_peak_stays_below(self, large: Path, rows: int, axis: int) -> None:
        count = (large / "dy.bin").stat().st_size // 4
        said, peak = self.measured(large, f"{rows}x{count // rows}", axis)
        assert (large / "dy.bin").stat().st_size >= 3 * MEMORY
        assert peak < MEMORY, said
        assert ("1 block;" in said) == (rows == 1), said
        dy = np.memmap(large / "dy.bin", np.float32, "r", shape=(rows, count // rows))
        dx = np.memmap(large / "dx.bin", np.float32, "r", shape=dy.shape)
        wanted = pb.cumsum_backward(np.asarray(dy), axis=axis)
        for k in range(rows):
            assert np.array_equal(dx[k].view(np.uint32), wanted[k].view(np.uint32))
