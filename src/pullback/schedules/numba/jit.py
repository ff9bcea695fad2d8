"""How functions inside kernels are compiled."""

from __future__ import annotations

from numba import njit

# Only kernels call these, so the entry points that Python and C would use are left out: they took
# half of the compile time.
inner = njit(error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True)
