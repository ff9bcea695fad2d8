"""Build wheel and source distribution, install each where nothing else is, and use it.

What is installed comes from the files alone: the current folder is another one, so that the sources
of this repository are not imported by accident.

Usage: python tools/package.py [FOLDER]
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PIP = ("-m", "pip", "--disable-pip-version-check", "-q")
USE = """
import numpy as np, pullback as pb
from importlib.metadata import version
assert version("pullback") == pb.__version__, (version("pullback"), pb.__version__)
y = pb.softmax(np.zeros((2, 4), np.float32))
assert (y == 0.25).all()
print(pb.__version__, pb.__file__)
"""


def run(*command: str | Path, cwd: Path) -> None:
    print("$", *command, flush=True)
    subprocess.run(command, check=True, cwd=cwd)


def environment(folder: Path) -> Path:
    """The interpreter of a new environment."""
    run(sys.executable, "-m", "venv", folder, cwd=folder.parent)
    return folder / "bin" / "python"


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        dist = Path(sys.argv[1]).resolve() if sys.argv[1:] else work / "dist"
        python = environment(work / "build")
        run(python, *PIP, "install", "build", cwd=work)
        run(python, "-m", "build", "--outdir", dist, ROOT, cwd=work)
        for made in sorted(dist.glob("pullback-*")):
            python = environment(work / made.name)
            run(python, *PIP, "install", made, cwd=work)
            run(python, "-c", USE, cwd=work)
            run(python, "-m", "pullback", "ops", "softmax", cwd=work)
        print("wheel and sdist install and run")


if __name__ == "__main__":
    main()
