"""Folds and scans as they are compiled, run instruction by instruction (``ptx.py``).

In Triton's interpreter scans and folds are stand-ins; here the compiler's own lowering of them to
shuffles, shared memory and barriers is run for real.
"""

from __future__ import annotations

import re

import numpy as np
import pytest

import ptx
import roundings
import tolerance
import triton_bounds
from cell_data import operands
from cells import OPS
from grid import default
from triton_cells import launch

pytest.importorskip("triton")

from pullback.gpu import launch as gpu_launch
from pullback.gpu.device import folds_in_clusters
from pullback.gpu.offline import TARGETS, compile_step
from pullback.gpu.tiles import Tile

# Tiles as they are chosen, or made small so that rows have many blocks or several programs.
BLOCKS, CHUNKS = Tile(1, 1024, 4, 1 << 20, 1), Tile(1, 512, 2, 1024, 3)
TAIL = Tile(1, 512, 2, 4096, 1, tail=1024)
CLUSTER = Tile(1, 4096, 2, 4096, 1, cores=4)
CELLS = [
    ("cumsum", "f32", (3, 1000), -1, None),
    ("cumsum", "bf16", (2, 3000), -1, None),
    ("cumsum", "f32", (2, 5000), -1, None),
    ("cumsum", "f32", (300, 40), 0, None),
    ("cumsum_backward", "f32", (1, 2500), -1, CHUNKS),
    ("cumprod", "f32", (2, 700), -1, None),
    ("cumprod_backward", "f32", (2, 300), -1, None),
    ("cumprod_backward", "f32", (1, 2500), -1, BLOCKS),
    ("cummax_backward", "f32", (2, 1000), -1, None),
    ("cummax_backward", "f32", (300, 20), 0, None),
    ("cummin_backward", "bf16", (1, 2500), -1, BLOCKS),
    ("logcumsumexp", "f32", (2, 1000), -1, None),
    ("logcumsumexp_backward", "f32", (1, 2500), -1, BLOCKS),
    ("linear_recurrence", "f32", (2, 1000), -1, None),
    ("sum", "f32", (2, 9000), -1, None),
    ("std", "f32", (2, 1000), -1, None),
    ("softmax_backward", "f32", (3, 1000), -1, None),
    ("softmax_backward", "f32", (1, 2500), -1, CHUNKS),
    ("softmax_backward", "f32", (1, 2500), -1, TAIL),
]
if folds_in_clusters():
    CELLS += [
        ("softmax_backward", "f32", (2, 3000), -1, CLUSTER),
        ("softmax", "bf16", (1, 4000), -1, CLUSTER),
        ("std", "f32", (1, 2500), -1, CLUSTER),
    ]


def run_compiled(cell, given, change=None) -> dict[str, np.ndarray]:
    """Results of the compiled kernels of a cell, whose text may be changed, in arrays of NaN."""
    made = launch(cell.problem)
    arrays = {n: np.array(a, order="C") for n, a in given.items()}
    outputs = {
        o.name: np.full(cell.shape_of(o.name), np.nan, cell.dtype_of(o.name))
        for o in cell.problem.writes
    }
    room = {"workspace": np.full(made.workspace // 8, np.nan)} if made.workspace else {}
    for step in made.steps:
        target = "sm_90" if step.cores > 1 else "sm_80"
        text = compile_step(step, TARGETS[target]).assembly
        ptx.run(step, change(text) if change else text, arrays | outputs | room)
    return {n: outputs[n] for n in cell.outputs}


@pytest.fixture
def on_gpu(monkeypatch):
    """What results may lose there."""
    for what in ("tree_depth", "scan_depth"):
        monkeypatch.setattr(roundings, what, triton_bounds.depth)
    monkeypatch.setattr(tolerance, "bounds", triton_bounds.bounds)


@pytest.mark.parametrize(("name", "element", "shape", "axis", "tile"), CELLS)
def test_compiled_scans_and_folds(name, element, shape, axis, tile, on_gpu, monkeypatch):
    if tile:
        monkeypatch.setattr(gpu_launch, "choose_tile", lambda *a, **k: tile)
    cell = default(OPS[name], element).but(shape=shape, axis=axis)
    given = operands(cell, "normal")
    wrong = triton_bounds.wrong_with(cell, given, run_compiled(cell, given))
    assert not wrong, wrong[0]


def test_faults_in_compiled_text_are_noticed(on_gpu):
    """A shuffle by another distance, and each barrier that is left out."""
    cell = default(OPS["cumsum"], "f32").but(shape=(1, 1000), axis=-1)
    given = operands(cell, "normal")
    shuffle = re.compile(r"(shfl\.sync\.up\.b32 \t%r\d+, %r\d+), 4,")
    found = run_compiled(cell, given, lambda text: shuffle.sub(r"\1, 5,", text))
    assert triton_bounds.wrong_with(cell, given, found)
    with pytest.raises(AssertionError, match="without a barrier"):
        run_compiled(cell, given, lambda text: text.replace("bar.sync", "// bar.sync"))
    with pytest.raises(AssertionError, match="outside of what was given"):
        run_compiled(cell, given, lambda text: text.replace(", 2048;", ", 4096;"))


@pytest.mark.skipif(not folds_in_clusters(), reason="Triton 3.9 is the first to fold in clusters")
def test_a_cluster_without_its_barriers_is_noticed(on_gpu, monkeypatch):
    monkeypatch.setattr(gpu_launch, "choose_tile", lambda *a, **k: CLUSTER)
    cell = default(OPS["softmax_backward"], "f32").but(shape=(1, 3000), axis=-1)
    given = operands(cell, "normal")
    for ordinary in ("bar.sync \t0;", ""):
        with pytest.raises(AssertionError, match="without a barrier"):
            run_compiled(
                cell, given, lambda text, o=ordinary: re.sub(r"barrier\.cluster\.wait\S*;", o, text)
            )
