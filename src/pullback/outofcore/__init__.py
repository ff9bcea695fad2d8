"""Ops on files larger than memory, with the bytes of the in-memory function.

Files are memory-mapped in and out and cut into blocks along the axes that the op leaves
independent. Pages that a block has used are handed back, so that the memory this process occupies
stays below a limit. Columns too long for that are copied block by block. Where a single row is
larger than the limit, the kernel walks the mapped files itself and sees them through windows.

The output appears under its name only when it is whole; what an interrupted run had finished waits
in a partial file beside it.
"""

from .job import Job, Options, run_files
from .running import Summary

__all__ = ["Job", "Options", "Summary", "run_files"]
