"""The unfinished output of a run: partial files, and a note of the blocks that are done."""

from __future__ import annotations

import hashlib
import json
import os
import stat
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...errors import InvalidProblemError
from .files import settle
from .targets import remove, uninterrupted
from .zarrs import settle_all

# Seconds between notes: what a run that was killed may have to do again.
PERIOD = 2.0
# A note of a million blocks has a tenth of this.
LARGEST_NOTE = 1 << 27
_ANEW = "without --resume the run starts anew"


@dataclass
class Progress:
    """How a job is cut, and a checksum of what every finished block wrote, in order."""

    cut: dict[str, Any]
    blocks: list[int] = field(default_factory=list)


class Note:
    """What has been done, kept beside the first output.

    Parameters
    ----------
    path
        Where the note is kept.
    partials
        The files that the blocks are written to.
    identity
        What must be the same for the blocks to be of use, by what a user calls it.
    """

    def __init__(self, path: Path, partials: Iterable[Path], identity: dict[str, Any]):
        self.path = path
        self.partials = list(partials)
        self.saved = 0
        # As it will be read: without tuples.
        self._identity = json.loads(json.dumps(identity))
        self._written = time.monotonic()

    @property
    def _scratch(self) -> Path:
        return self.path.with_name(f"{self.path.name}.new")

    def find(self) -> Progress | None:
        """What an earlier run has finished, None if there is no note; raises if it is of no use."""
        state = self._read()
        if state is None:
            return None
        found = state["job"]
        for name in dict.fromkeys([*self._identity, *found]):
            now, then = self._identity.get(name), found.get(name)
            if now != then:
                raise self._refusal(_difference(name, now, then))
        self.saved = len(state["blocks"])
        return Progress(state["cut"], state["blocks"])

    def count_kept(self) -> int:
        """Blocks that an earlier run, of this job or of another, has left behind."""
        try:
            state = self._read()
        except (OSError, InvalidProblemError):
            return 0
        return len(state["blocks"]) if state else 0

    def _read(self) -> dict[str, Any] | None:
        try:
            handle = os.open(self.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        with open(handle, "rb") as file:
            status = os.fstat(handle)
            if not stat.S_ISREG(status.st_mode) or status.st_size > LARGEST_NOTE:
                raise self._refusal(f"{self.path} is no note of a run")
            text = file.read()
        try:
            state = json.loads(text)
            digest = state.pop("digest")
            whole = digest == _digest(state)
        except (ValueError, TypeError, AttributeError, KeyError, RecursionError):
            raise self._refusal(f"{self.path} is damaged, or no note of a run") from None
        if not whole:
            raise self._refusal(f"{self.path} was changed since the run wrote it")
        if not _well_formed(state):
            raise self._refusal(f"{self.path} was written by another version")
        return dict(state)

    def _refusal(self, reason: str) -> InvalidProblemError:
        return InvalidProblemError(f"resume: {reason}; {self.where}, {_ANEW}")

    def refuse(self, reason: object) -> InvalidProblemError:
        """An error that says why what was done is of no use, and that it is still there."""
        return self._refusal(str(reason))

    @property
    def where(self) -> str:
        """Where the work is."""
        verb = "is" if len(self.partials) == 1 else "are"
        return f"{' and '.join(map(str, self.partials))} {verb} kept"

    def save(self, progress: Progress, now: bool = False) -> None:
        """Note blocks as done, once what they wrote is on the disk."""
        if not now and time.monotonic() - self._written < PERIOD:
            return
        for part in self.partials:
            (settle_all if part.is_dir() else settle)(part)
        state = {"job": self._identity, "cut": progress.cut, "blocks": progress.blocks}
        text = json.dumps({**state, "digest": _digest(json.loads(json.dumps(state)))})
        self._scratch.unlink(missing_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        with open(os.open(self._scratch, flags, 0o666), "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(self._scratch, self.path)
        settle(self.path.parent)
        self.saved = len(progress.blocks)
        self._written = time.monotonic()

    def keep(self, progress: Progress, count: int, how: str) -> str:
        """Keep what is finished for another run, or leave nothing; says where and how to go on."""
        with suppress(OSError, KeyboardInterrupt), uninterrupted():
            if progress.blocks:
                self.save(progress, now=True)
        if not self.saved:
            self.discard()
            return "nothing was finished, nothing is left behind"
        where = " and ".join(map(str, self.partials))
        return f"{self.saved} of {count} blocks are kept in {where}; {how} does the rest"

    def remove(self) -> None:
        """Forget the note."""
        for path in (self.path, self._scratch):
            with suppress(OSError):
                path.unlink(missing_ok=True)

    def discard(self) -> None:
        """Remove the note, and then the partial files."""
        self.remove()
        for part in self.partials:
            with suppress(OSError):
                remove(part)


def _digest(state: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(state, sort_keys=True).encode()).hexdigest()


def _well_formed(state: dict[str, Any]) -> bool:
    """Whether a note has the parts it should have."""
    return (
        set(state) == {"job", "cut", "blocks"}
        and isinstance(state["job"], dict)
        and isinstance(state["cut"], dict)
        and isinstance(state["blocks"], list)
        and all(type(crc) is int for crc in state["blocks"])
    )


def _difference(name: str, now: Any, then: Any) -> str:
    """What differs from the earlier run, with its values where they tell something."""
    if name.startswith(("the modification time", "the contents", "the source")):
        return f"{name} changed since the run began"
    return f"{name} is {_shown(now)}, was {_shown(then)} when the run began"


def _shown(value: Any) -> str:
    return "not given" if value is None else str(value)
