"""The unfinished output of a run: a partial file and a note of the blocks that are done."""

from __future__ import annotations

import json
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from .files import settle

# Seconds between notes: what an interrupted run may have to do again.
PERIOD = 2.0


def partial_path(target: Path) -> Path:
    """Where an output is written before it has its name."""
    return target.with_name(f".{target.name}.partial")


class Note:
    """What has been done, kept beside the first output."""

    def __init__(self, target: Path, partials: list[Path], identity: dict[str, Any]):
        self.path = target.with_name(f".{target.name}.resume")
        self._partials = partials
        self._identity = identity
        self._written = time.monotonic()

    def earlier(self) -> tuple[int, dict[str, Any]] | None:
        """Blocks that an earlier run of the same job has finished, and how it was cut."""
        try:
            held = json.loads(self.path.read_text())
        except (OSError, ValueError):
            return None
        if held.get("job") != self._identity or not all(p.is_file() for p in self._partials):
            return None
        return int(held["done"]), held["cut"]

    def save(self, done: int, cut: dict[str, Any], now: bool = False) -> None:
        """Note so many blocks of a cut as done, once what they wrote is on the disk."""
        if not now and time.monotonic() - self._written < PERIOD:
            return
        for part in self._partials:
            settle(part)
        scratch = self.path.with_name(f"{self.path.name}.new")
        scratch.write_text(json.dumps({"job": self._identity, "done": done, "cut": cut}))
        os.replace(scratch, self.path)
        self._written = time.monotonic()

    def remove(self) -> None:
        """Forget the note."""
        with suppress(OSError):
            self.path.unlink(missing_ok=True)
            self.path.with_name(f"{self.path.name}.new").unlink(missing_ok=True)

    def discard(self) -> None:
        """Remove the note and the partial files."""
        self.remove()
        for part in self._partials:
            with suppress(OSError):
                part.unlink(missing_ok=True)
