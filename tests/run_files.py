"""``pullback run`` in this process, on small files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from click.testing import CliRunner

from pullback.tools.cli import main

RNG = np.random.default_rng(3)


def normal(*shape: int, dtype: object = np.float32) -> np.ndarray:
    return RNG.standard_normal(shape).astype(dtype)


def run(*arguments: object) -> str:
    result = CliRunner().invoke(main, ["run", *map(str, arguments)])
    assert result.exit_code == 0, result.output
    return result.output


def contents(folder: Path) -> dict[str, bytes | None]:
    """What the files of a folder hold; None for what is no file."""
    return {
        p.name: p.read_bytes() if p.is_file() and not p.is_symlink() else None
        for p in sorted(folder.iterdir())
    }


def refused(folder: Path, *arguments: object) -> str:
    """The one line of a run that exits with 2 and leaves the folder as it was."""
    before = contents(folder)
    result = CliRunner().invoke(main, ["run", *map(str, arguments)])
    assert result.exit_code == 2, (result.exit_code, result.output)
    assert contents(folder) == before
    lines = result.output.splitlines()
    assert len(lines) == 1, lines
    return lines[0]


def same(a: np.ndarray, b: np.ndarray) -> bool:
    return a.shape == b.shape and a.dtype.itemsize == b.dtype.itemsize and (
        np.ascontiguousarray(a).tobytes() == np.ascontiguousarray(b).tobytes()
    )  # fmt: skip
