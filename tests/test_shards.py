"""DTensors and sharded JAX arrays, each in a process of its own that has the processes or devices.

The scripts compare bytes with the uncut op and count what is communicated.
"""

from __future__ import annotations

import sys

import pytest

from scripts import run_script


@pytest.mark.skipif(sys.platform == "win32", reason="processes are forked")
def test_every_op_on_dtensors() -> None:
    pytest.importorskip("torch.distributed.tensor")
    script = "import shards_torch; shards_torch.main()"
    assert "same bytes" in run_script(script, flags=())


def test_every_op_on_sharded_jax_arrays() -> None:
    pytest.importorskip("jax")
    printed = run_script("import shards_jax; shards_jax.main()", flags=())
    assert printed.count("same bytes") == 4
