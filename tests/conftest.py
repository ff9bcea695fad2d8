"""Counts the cells that were checked, marks the quick tests, and sets hypothesis up."""

from __future__ import annotations

import os
import signal

import pytest
from hypothesis import HealthCheck, settings

from cells import COVERED
from triton_cells import COMPILED

# A shell ignores interrupts for what it runs in the background, and so would whatever tests start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# What XLA makes of programs around kernels need not be fast: a fifth of the time of JAX's tests.
os.environ.setdefault(
    "XLA_FLAGS",
    "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true",
)

settings.register_profile(
    "suite",
    deadline=None,
    derandomize=True,
    max_examples=40,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("suite")

# Files of tests that compile few kernels and start few processes.
QUICK = {
    "test_accuracy", "test_api", "test_edges", "test_errors", "test_interop", "test_oracle",
    "test_plans", "test_properties", "test_repeated", "test_segment", "test_vocabulary",
}  # fmt: skip


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of ``make check``: the quick files, and every op against the oracle in f32."""
    for item in items:
        in_float32 = item.path.stem == "test_values" and item.name.endswith("-f32]")
        if in_float32 or item.path.stem in QUICK:
            item.add_marker("quick")


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Hand the cells of an xdist worker to the controller."""
    output = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["cells"] = ["\t".join(cell) for cell in sorted(COVERED)]
        output["compiled"] = ["\t".join(cell) for cell in sorted(COMPILED)]


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node, error) -> None:
    """Take the cells of a worker that has finished."""
    output = getattr(node, "workeroutput", {})
    COVERED.update(tuple(line.split("\t")) for line in output.get("cells", ()))
    COMPILED.update(tuple(line.split("\t")) for line in output.get("compiled", ()))


def pytest_terminal_summary(terminalreporter) -> None:
    """Say how many cells were covered."""
    if COMPILED:
        terminalreporter.write_line(f"{len(COMPILED)} cells compiled for GPUs: op x dtype x target")
    if not COVERED:
        return
    counts = [len(set(column)) for column in zip(*COVERED, strict=True)]
    ops, elements, directions, layouts, edges = counts
    terminalreporter.write_line(
        f"{len(COVERED)} cells: op x dtype x direction x layout x edge "
        f"({ops} ops, {elements} dtypes, {directions} directions, {layouts} layouts, "
        f"{edges} edges)"
    )


@pytest.fixture(autouse=True)
def _wide_console(monkeypatch):
    """Tables as they print into a file; test runners may set a terminal's width for workers."""
    monkeypatch.delenv("COLUMNS", raising=False)
