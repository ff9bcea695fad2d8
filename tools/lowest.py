"""Run tests with the oldest releases that pyproject.toml allows, in an environment of its own.

The lower bounds are read off pyproject.toml. torch is left out: its bound is tested by nobody here,
because two releases of it do not fit beside each other on a small disk.

What runs is what a release of these packages could break: every op in float32 against the oracle
(llvmlite, NumPy, mpmath), arrays of other libraries, the kernel cache, JAX's names, arguments, FFI,
bytes and derivatives, and the command line (click, rich).

Usage: python tools/lowest.py [pytest arguments]
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ENVIRONMENT = ROOT / ".venv-lowest"
BOUNDED = ("click", "ml_dtypes", "mpmath", "llvmlite", "numpy", "rich", "jax")
TESTS = (
    "test_values", "test_api", "test_interop", "test_cache", "test_numpy_names", "test_jax_names",
    "test_jax_signatures", "test_jax_beyond", "test_jax_ffi", "test_cli_commands",
)  # fmt: skip
# The other element types are other kernels, and the same calls of these packages.
CHOSEN = "not test_values or f32"


def bounds() -> list[str]:
    """The lowest release of each package, as pip wants it."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    found = []
    for name in BOUNDED:
        said = re.search(rf'"{name}>=([\d.]+)"', text)
        assert said is not None, name
        # 0.61 means any 0.61.x: the first one may have been withdrawn.
        whole = said[1].count(".") >= 2
        found.append(f"{name}=={said[1]}" if whole else f"{name}=={said[1]}.*")
    return found


def main() -> int:
    python = ENVIRONMENT / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", ENVIRONMENT], check=True)
    pip = (python, "-m", "pip", "--disable-pip-version-check", "install", "-qq")
    tests = (
        "pytest>=8.2",
        "pytest-xdist>=3.6",
        "hypothesis>=6.100",
        "gmpy2>=2.1.5",
        "absl-py",  # for what JAX exports, with the next
        "flatbuffers>=24",
    )
    subprocess.run([*pip, *bounds(), *tests], check=True)
    subprocess.run([*pip, "--no-deps", "--editable", ROOT], check=True)
    subprocess.run([python, "-m", "pip", "freeze", "--exclude-editable"], check=True)
    files = [f"tests/{name}.py" for name in TESTS]
    chosen = sys.argv[1:] or ["-q", "-n", "auto", "-k", CHOSEN, *files]
    return subprocess.run([python, "-m", "pytest", *chosen], cwd=ROOT, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
