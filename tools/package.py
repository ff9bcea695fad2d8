"""Build wheel and source distribution, install each where nothing else is, and use it.

What is installed comes from the files alone: the current folder is another one, so that the sources
of this repository are not imported by accident.

With ``--pythons`` the wheel is installed and used with every Python from 3.10 to 3.14 that is here:
on the path, or one of pyenv's.

Usage: python tools/package.py [--pythons] [FOLDER]
"""

from __future__ import annotations

import shutil
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


def environment(folder: Path, python: str = sys.executable) -> Path:
    """The interpreter of a new environment."""
    run(python, "-m", "venv", folder, cwd=folder.parent)
    return folder / "bin" / "python"


def use(made: Path, folder: Path, python: str = sys.executable) -> None:
    """Install what was built, compute something, and run the command."""
    inside = environment(folder, python)
    run(inside, *PIP, "install", made, cwd=folder.parent)
    run(inside, "-c", USE, cwd=folder.parent)
    run(inside, "-m", "pullback", "ops", "softmax", cwd=folder.parent)


def pythons() -> dict[str, str]:
    """The interpreters that are here, by version."""
    found = {}
    for version in ("3.10", "3.11", "3.12", "3.13", "3.14"):
        kept = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))
        here = str(kept[-1]) if kept else shutil.which(f"python{version}")
        if here:
            found[version] = here
    return found


def main() -> None:
    given = [a for a in sys.argv[1:] if a != "--pythons"]
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        dist = Path(given[0]).resolve() if given else work / "dist"
        python = environment(work / "build")
        run(python, *PIP, "install", "build", cwd=work)
        run(python, "-m", "build", "--outdir", dist, ROOT, cwd=work)
        if "--pythons" in sys.argv:
            (wheel,) = dist.glob("pullback-*.whl")
            for version, other in pythons().items():
                use(wheel, work / version, other)
            print(f"the wheel installs and runs with Python {', '.join(pythons())}")
            return
        for made in sorted(dist.glob("pullback-*")):
            use(made, work / made.name)
        print("wheel and sdist install and run")


if __name__ == "__main__":
    main()
