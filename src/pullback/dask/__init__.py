"""The functions of the library on dask arrays: lazy, with the bytes of the uncut op for any chunks.

Graphs have three kinds of layers: states of chunks, states joined in order, results. Chunks along
the op's own axis are kept; less than a block moves between neighbours to put a cut on the grid.

Examples
--------
>>> import dask.array as da, numpy as np
>>> import pullback.dask as pd
>>> x = da.ones((2, 3000), chunks=(1, 1000), dtype=np.float32)
>>> y = pd.cumsum(x, axis=1)
>>> y.chunks
((1, 1), (1000, 1000, 1000))
>>> float(y[0, -1].compute())
3000.0
"""

from __future__ import annotations

from typing import Any

try:
    from .functions import DASK_FUNCTIONS as _FUNCTIONS
except ModuleNotFoundError as error:
    if error.name and error.name.partition(".")[0] != "dask":
        raise
    raise ModuleNotFoundError(
        "pullback.dask needs dask: pip install 'dask[array,distributed]'", name=error.name
    ) from None

__all__ = list(_FUNCTIONS)


def __getattr__(name: str) -> Any:
    if name in _FUNCTIONS:
        return _FUNCTIONS[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_FUNCTIONS])
