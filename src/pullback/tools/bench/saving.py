"""A report that is kept while it is made, so that what was measured outlives an interrupt."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from ..case import Case
from .summary import SCHEMA, key_of

Key = tuple[str, str, str, str]
# What must be the same for two halves of a report to go together.
_ALIKE = ("schema", "machine", "settings")


class Kept:
    """The cells of a report in a file, and those that an unfinished one of the same kind had."""

    def __init__(self, path: Path | None, head: Mapping[str, Any], write: Callable[..., None]):
        self._path, self._head, self._write = path, dict(head), write
        self.cells: list[dict[str, Any]] = []
        found = _unfinished(path)
        as_read = json.loads(json.dumps(self._head))
        if found and all(found.get(k) == as_read.get(k) for k in _ALIKE):
            self.cells = list(found["cells"])
        self.resumed = len(self.cells)

    @property
    def done(self) -> set[Key]:
        """The cases that need not be measured again."""
        return {key_of(c) for c in self.cells}

    def add(self, cell: dict[str, Any]) -> None:
        """Keep one more, now."""
        self.cells.append(cell)
        if self._path is not None:
            self._write(self._path, self.report() | {"unfinished": True})

    def lacks(self, cases: Iterable[Case]) -> bool:
        """Whether one of these has not been measured."""
        return not {c.key for c in cases} <= self.done

    def report(self) -> dict[str, Any]:
        """What there is by now."""
        return self._head | {"cells": self.cells}


def _unfinished(path: Path | None) -> dict[str, Any] | None:
    """A report that was not finished; None if there is none."""
    if path is None or not path.is_file():
        return None
    try:
        held = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    is_ours = isinstance(held, dict) and held.get("schema") == SCHEMA and held.get("unfinished")
    return held if is_ours and isinstance(held.get("cells"), list) else None
