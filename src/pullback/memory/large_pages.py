"""Large pages for new results.

Touching 64 MB of new memory in pages of 4 kB took 18 ms on two cores, in pages of 2 MB 9 ms: as
long as a gradient itself. NumPy asks for large pages; torch by default and XLA do not.
"""

from __future__ import annotations

import ctypes
import mmap

# Smaller results come out of memory that is already there.
LARGE = 4 << 20

ADVICE = getattr(mmap, "MADV_HUGEPAGE", None)
madvise = getattr(ctypes.CDLL(None), "madvise", None) if ADVICE is not None else None
if madvise is not None:
    madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
