"""Ops on files larger than memory, with the bytes of the in-memory function.

Files are cut into blocks along the axes that the op leaves independent; a block is read, computed
and written, so that the memory this process occupies stays below a limit. Where a single row is
larger than the limit, it is cut along the op's axis, and states go on from piece to piece.

The output appears under its name only when it is whole; what an interrupted run had finished waits
in a partial file beside it, with a note of what it was and checksums of what it wrote.
"""

from .job import Job
from .running import Interrupted, Summary

__all__ = ["Interrupted", "Job", "Summary"]
