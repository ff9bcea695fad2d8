"""The JAX examples run and learn."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import numpy as np
import pytest

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"


def load(name):
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_cox_regression(capsys, monkeypatch):
    module = load("cox_regression_jax")
    # XLA takes seven seconds to compile the gradient of JAX's own scan.
    monkeypatch.setattr(module, "own", module.ours)
    losses = module.main(count=5000, hospitals=10, steps=5)
    assert losses[0] > losses[1] > losses[2]
    assert losses[-1] == pytest.approx(losses[-2], rel=1e-5)
    shown = capsys.readouterr().out
    found = re.search(r"^found \[(.*?)\]", shown, re.MULTILINE)
    assert found is not None
    # A standard error is about 1/sqrt(events), 0.02 here.
    np.testing.assert_allclose([float(c) for c in found[1].split()], module.TRUTH, atol=0.1)
    assert "one gradient: pullback" in shown


def test_volume_rendering(capsys):
    losses = load("volume_rendering_jax").main(rays=64, samples=32, steps=60)
    assert losses[-1] < losses[0] / 5
    assert np.all(np.isfinite(losses))
    assert "one gradient: pullback" in capsys.readouterr().out


def test_state_space(capsys, monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    losses = load("state_space_jax").main(count=8, length=128, channels=16, steps=40)
    assert losses[-1] < 0.7 * losses[0]
    assert "jax.lax.associative_scan" in capsys.readouterr().out.splitlines()[-1]
