"""Machines other than the one at hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pullback.cpu import machine


def assume(monkeypatch: Any, **caches: int) -> None:
    """Let choices be made as for caches of these sizes."""
    real = machine.here()
    other = replace(real, caches=replace(real.caches, **caches))
    monkeypatch.setattr(machine, "here", lambda: other)
