"""Plant faults in a copy of the package and see the suite go red.

    python tools/mutants.py [word ...]

Each fault (``faults/``) is one edit, run against a test that should notice it; words pick the
faults whose names contain one of them. Control runs of the same tests on an unchanged copy must
pass. Exits with 1 if a fault survives, or no longer applies because the source has changed.

A trial is a fork of this process, which has imported whatever takes long and is not ours: PyTorch
and JAX once the trials are through that need neither. Kernels are filed under a digest of the
sources they are made of, and under one of their formula. A fault that makes no other kernels, or
other ones by its formula alone, is told the digest of the sources without it: what it does not
touch is what the suite has compiled.
"""

from __future__ import annotations

import importlib
import os
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from faults import FAULTS, Fault

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "pullback"

# Exit codes of pytest: anything but these means that the tests did not run as they should.
PASSED, FAILED = 0, 1
# That of a trial which did not get as far as the tests; beyond those of pytest.
NOT_RUN = 70

# What tests import beside the package, and words in the names of the tests that do; each group has
# the imports of those before it.
OTHERS = (
    (("llvmlite.binding", "ml_dtypes", "mpmath", "numpy", "pytest"), ()),
    (("torch", "torch.distributed"), ("torch", "pyg", "interop", "shards", "triton")),
    (("jax",), ("jax",)),
)
# Of cpu/, what only decides which kernels run.
LAUNCHING = ("cpu/backend.py", "cpu/launch.py", "cpu/layout.py")


def applies(fault: Fault) -> bool:
    return (PACKAGE / fault.file).read_text(encoding="utf-8").count(fault.before) == 1


def makes_other_kernels(fault: Fault) -> bool:
    """Whether machine code changes otherwise than by its formula, which has a digest of its own."""
    return fault.file.startswith("cpu/") and fault.file not in LAUNCHING


def group_of(test: str) -> int:
    """The last group of imports that a test needs."""
    file = test.split("::")[0]
    return max(k for k, (_, words) in enumerate(OTHERS) if not k or any(w in file for w in words))


def import_group(group: int) -> None:
    """Import what trials of a group need beside the package."""
    for name in OTHERS[group][0]:
        importlib.import_module(name)
    assert not [name for name in sys.modules if name.split(".")[0] == "pullback"]


def copy_package(folder: Path) -> Path:
    """The package under ``folder/src``, with its bytecode; returns the package's directory."""
    target = folder / "src" / "pullback"
    shutil.copytree(PACKAGE, target)
    return target


def run_tests(folder: Path, tests: list[str], keeps_digest: bool) -> int:
    """Exit code of pytest with the package in ``folder``; for a process that does nothing else."""
    import pytest

    sys.dont_write_bytecode = True
    os.environ["PYTHONPATH"] = str(folder / "src")
    sys.path.insert(0, str(folder / "src"))
    os.chdir(ROOT)
    import pullback
    from pullback.cpu import compile as compiling

    assert pullback.__file__.startswith(str(folder)), f"the tests would import {pullback.__file__}"
    if keeps_digest:
        compiling.__file__ = str(PACKAGE / "cpu" / "compile.py")  # the sources are beside it
    wanted = [f"tests/{test}" for test in tests]
    return int(pytest.main(["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *wanted]))


@dataclass
class Trial:
    """A run with a fault, or without any."""

    fault: Fault | None
    tests: list[str]
    code: int = -1
    output: str = ""
    seconds: float = 0.0

    @property
    def name(self) -> str:
        return self.fault.name if self.fault else "none (control)"

    @property
    def group(self) -> int:
        return max(map(group_of, self.tests))

    @property
    def keeps_digest(self) -> bool:
        return self.fault is None or not makes_other_kernels(self.fault)

    @property
    def result(self) -> str:
        words = {PASSED: "survived", FAILED: "killed"} if self.fault else {PASSED: "passed"}
        return words.get(self.code, f"exit {self.code}")

    @property
    def is_as_expected(self) -> bool:
        return self.code == (FAILED if self.fault else PASSED)

    def start(self, folder: Path) -> int:
        """Fork a process that runs the tests, and return its id."""
        package = copy_package(folder)
        if self.fault is not None:
            file = package / self.fault.file
            text = file.read_text(encoding="utf-8")
            file.write_text(text.replace(self.fault.before, self.fault.after), encoding="utf-8")
        sys.stdout.flush()
        pid = os.fork()
        if pid == 0:
            shown = os.open(folder / "output", os.O_WRONLY | os.O_CREAT)
            os.dup2(shown, 1)
            os.dup2(shown, 2)
            try:
                code = run_tests(folder, self.tests, self.keeps_digest)
            except BaseException:
                traceback.print_exc()
                code = NOT_RUN
            sys.stdout.flush()
            os._exit(code)
        return pid


def run_all(trials: list[Trial], workers: int) -> Iterator[Trial]:
    """Run trials side by side, by groups of imports; gives each as it ends."""
    waiting = sorted(trials, key=lambda t: t.group)
    imported = -1
    running: dict[int, tuple[Trial, Path, float]] = {}
    with tempfile.TemporaryDirectory(prefix="mutants-") as name:
        while waiting or running:
            while waiting and len(running) < workers:
                trial = waiting.pop(0)
                while imported < trial.group:
                    imported += 1
                    import_group(imported)
                folder = Path(name) / str(len(trials) - len(waiting))
                running[trial.start(folder)] = trial, folder, time.monotonic()
            pid, status = os.wait()
            trial, folder, started = running.pop(pid)
            trial.code = os.waitstatus_to_exitcode(status)
            trial.output = (folder / "output").read_text(encoding="utf-8")
            trial.seconds = time.monotonic() - started
            shutil.rmtree(folder)
            yield trial


def controls(faults: list[Fault]) -> list[Trial]:
    """Every test without a fault, one trial for each group of imports."""
    tests = sorted({f.test for f in faults})
    some = ([t for t in tests if group_of(t) == k] for k in range(len(OTHERS)))
    return [Trial(None, group) for group in some if group]


def main(words: list[str]) -> int:
    chosen = [f for f in FAULTS if not words or any(w in f.name for w in words)]
    stale = [f for f in chosen if not applies(f)]
    for fault in stale:
        print(f"no longer applies: {fault.name}: {fault.file} has not exactly one {fault.before!r}")
    chosen = [f for f in chosen if f not in stale]
    trials = [*controls(chosen), *(Trial(f, [f.test]) for f in chosen)]
    print(f"{'fault':36} {'result':10} {'s':>5}  test")
    for trial in run_all(trials, os.cpu_count() or 1):
        shown = trial.tests[0] if trial.fault else f"all {len(trial.tests)}"
        print(f"{trial.name:36} {trial.result:10} {trial.seconds:5.1f}  {shown}", flush=True)
        if not trial.is_as_expected and trial.code != PASSED:
            print(trial.output[-2000:])
    killed = sum(t.fault is not None and t.code == FAILED for t in trials)
    print(f"{killed} of {len(chosen)} faults killed")
    return 1 if stale or not all(t.is_as_expected for t in trials) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
