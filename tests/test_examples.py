"""The NumPy examples run, learn, and say how long they took."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"


def test_ppo_advantages(capsys, monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    spec = importlib.util.spec_from_file_location("ppo", EXAMPLES / "ppo_advantages.py")
    module = importlib.util.module_from_spec(spec)
    # A dataclass looks for the module that it is in.
    monkeypatch.setitem(sys.modules, "ppo", module)
    spec.loader.exec_module(module)
    rewards = module.main(environments=16, steps=128, rounds=8)
    assert rewards[-1] > rewards[0] + 0.2
    shown = capsys.readouterr().out.splitlines()
    assert shown[-3].startswith("advantages of 128x16: pullback")
    assert shown[-2].startswith("learning from a rollout in four passes: pullback")
    assert shown[-1].startswith("a round, with a rollout simulated in Python: pullback")


def test_reservoir_levels(capsys):
    spec = importlib.util.spec_from_file_location("reservoir", EXAMPLES / "reservoir_xarray.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found = module.main(reservoirs=2, days=1400, chunk=365)
    assert found.dims == ("reservoir", "time")
    shown = capsys.readouterr().out.splitlines()
    assert shown[:2] == ["1400 days in 4 chunks", "same bytes as one array: True"]
