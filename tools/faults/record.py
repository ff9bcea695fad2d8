"""What a planted fault is."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Fault:
    """One edit, and the test that should fail for it."""

    name: str
    file: str
    before: str
    after: str
    test: str
