"""Running a piece of Python in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pullback

SOURCE = Path(pullback.__file__).resolve().parents[1]


def run_script(
    code: str, *, flags=("-W", "error"), source: Path = SOURCE, seconds: int = 300, **environment
) -> str:
    """Standard output of a script that must succeed; ``environment`` overrides variables."""
    paths = [str(source), str(Path(__file__).parent)]
    variables = {**os.environ, **{k: str(v) for k, v in environment.items()}}
    variables["PYTHONPATH"] = os.pathsep.join(paths)
    done = subprocess.run(
        [sys.executable, *flags, "-c", textwrap.dedent(code)],
        env=variables,
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )
    assert done.returncode == 0, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout
