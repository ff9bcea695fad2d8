"""DTensors and sharded JAX arrays, each in a process of its own that has the processes or devices.

The scripts compare bytes with the uncut op and count what is communicated.
"""

from __future__ import annotations

import itertools
import sys

import pytest

from scripts import run_script


@pytest.mark.parametrize(("n", "sizes"), [(10, (4,)), (3, (4,)), (11, (2, 3)), (0, (2,)), (5, ())])
def test_shards_begin_where_torch_puts_them(n: int, sizes: tuple[int, ...]) -> None:
    """Nested mesh dimensions halve what the ones before them left."""
    torch = pytest.importorskip("torch")
    from pullback.torch.exchange import bounds_of

    parts = [torch.arange(n)]
    for size in sizes:
        parts = [p for part in parts for p in (*part.chunk(size), *[part[:0]] * size)[:size]]
    found = bounds_of(n, sizes)
    assert [b - a for a, b in itertools.pairwise(found)] == [len(p) for p in parts]
    assert (found[0], found[-1]) == (0, n)


# Without kernels on the disk a script compiles those of its ops.
COLD = 1200
no_fork = pytest.mark.skipif(sys.platform == "win32", reason="processes are forked")


@no_fork
def test_ops_on_dtensors() -> None:
    pytest.importorskip("torch.distributed.tensor")
    script = "import shards_torch; shards_torch.main()"
    assert "compiled: same bytes" in run_script(script, flags=(), seconds=COLD)


@no_fork
def test_a_scan_on_four_processes() -> None:
    """Shards of 625 elements: what does not fill blocks of 512 moves, and so do borders."""
    pytest.importorskip("torch.distributed.tensor")
    script = "import shards_torch; shards_torch.check_one('linear_recurrence_backward')"
    assert "same bytes" in run_script(script, flags=(), seconds=COLD)


@no_fork
def test_axes_on_a_mesh_of_two_dimensions() -> None:
    """Axes that two mesh dimensions cut, off the grid too, and of several axes not the first."""
    pytest.importorskip("torch.distributed.tensor")
    script = "import shards_torch; shards_torch.check_meshes()"
    assert run_script(script, flags=(), seconds=COLD).count("same bytes") == 4


def test_ops_on_sharded_jax_arrays() -> None:
    pytest.importorskip("jax")
    printed = run_script("import shards_jax; shards_jax.main()", flags=(), seconds=COLD)
    assert printed.count("same bytes") == 5


def test_a_scan_on_two_devices() -> None:
    """Shards of 2400 elements, of which 160 move."""
    pytest.importorskip("jax")
    printed = run_script(
        "import shards_jax; shards_jax.check_one('cumsum')", flags=(), seconds=COLD
    )
    assert "same bytes" in printed
