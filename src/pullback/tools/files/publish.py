"""How whole files get their names."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from ...errors import InvalidProblemError
from . import files
from .operands import Operands
from .partial import Note
from .targets import check_target, give_name, partial_path, uninterrupted


class Publication:
    """The outputs of a run, from partial files to their names.

    Parameters
    ----------
    outputs
        The files that the user named, by operand; an ``.npz`` may hold several.

    Attributes
    ----------
    parts
        The partial files, by operand; the members of an archive are files of their own first.
    done
        Whether the outputs have their names.
    """

    def __init__(self, outputs: Mapping[str, Path]):
        self.outputs = outputs
        self.targets = list(dict.fromkeys(outputs.values()))
        self.archives = [t for t in self.targets if t.suffix.lower() == ".npz"]
        self.parts = {n: self._part(n) for n in outputs}
        self.done = False

    def _part(self, name: str) -> Path:
        target = self.outputs[name]
        if target in self.archives:
            target = target.with_name(f"{target.name}.{name}")
        return partial_path(target)

    def publish(self, operands: Operands, note: Note, force: bool) -> None:
        """Give the outputs their names, once they are on the disk; the partial files go."""
        for name, part in self.parts.items():
            stored = operands.stored[name]
            stored.settle()
            if not stored.is_at(part):
                raise InvalidProblemError(f"{part}: was replaced during the run")
        packed = {archive: partial_path(archive) for archive in self.archives}
        try:
            for archive, path in packed.items():
                path.unlink(missing_ok=True)
                inside = {n: p for n, p in self.parts.items() if self.outputs[n] == archive}
                files.pack(inside, path)
            with uninterrupted():
                for target in self.targets:
                    check_target(target, force)  # it may have come to be meanwhile
                for archive, path in packed.items():
                    os.replace(path, archive)
                for name, part in self.parts.items():
                    if self.outputs[name] not in packed:
                        give_name(part, self.outputs[name])
                self.done = True
                for folder in {target.parent for target in self.targets}:
                    files.settle(folder)
                note.discard()
        finally:
            for path in packed.values():
                path.unlink(missing_ok=True)
