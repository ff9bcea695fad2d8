"""The torch examples run, learn, and say how long they took."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = sorted((ROOT / "examples").glob("*_torch.py"))
SMALL = {
    "cox_regression_torch": {"count": 2000, "hospitals": 8, "steps": 30},
    "listmle_torch": {"queries": 32, "documents": 40, "steps": 20},
    "volume_rendering_torch": {"size": 24, "steps": 12},
    "graph_network_torch": {"nodes": 400, "steps": 20},
    "graph_attention_torch": {"nodes": 400, "heads": 2, "steps": 20},
    "masked_attention_torch": {"count": 64, "length": 20, "steps": 30},
    "language_model_torch": {"vocabulary": 50, "count": 16, "steps": 20},
    "state_space_torch": {"count": 8, "length": 128, "channels": 16, "steps": 30},
}


def test_all_are_here():
    assert [e.stem for e in EXAMPLES] == sorted(SMALL)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda e: e.stem)
def test_example(example, capsys, monkeypatch):
    monkeypatch.syspath_prepend(str(example.parent))
    spec = importlib.util.spec_from_file_location(example.stem, example)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    first, last = module.main(**SMALL[example.stem])
    assert last < 0.97 * first
    shown = capsys.readouterr().out
    assert shown.count("loss") >= 2
    gain = r".+: pullback [\d.]+ ms, .*torch.* [\d.]+ ms \([\d.]+ times\)"
    assert re.fullmatch(gain, shown.splitlines()[-1])
