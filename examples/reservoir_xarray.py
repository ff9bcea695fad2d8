"""Levels of reservoirs from inflow and losses: a recurrence along the time of an xarray dataset.

What is left after a day is what was there, less what evaporates, and what flows in: level[t] =
keep[t]·level[t−1] + inflow[t]. The data are chunked along time, as files of years would be, and the
recurrence goes on from chunk to chunk; the levels have the bytes that one array would have given.

    python examples/reservoir_xarray.py
"""

from __future__ import annotations

import numpy as np
import xarray as xr

import pullback as pb
import pullback.dask as pd


def make_data(reservoirs: int, days: int, chunk: int, seed: int = 0) -> xr.Dataset:
    """Inflow and what is kept of a day's level, chunked along time."""
    rng = np.random.default_rng(seed)
    shape = (reservoirs, days)
    data = xr.Dataset(
        {
            "keep": (("reservoir", "time"), rng.uniform(0.98, 1.0, shape).astype(np.float32)),
            "inflow": (("reservoir", "time"), rng.gamma(0.3, 2.0, shape).astype(np.float32)),
        }
    )
    return data.chunk({"reservoir": 1, "time": chunk})


def levels(data: xr.Dataset) -> xr.DataArray:
    """The level of every reservoir on every day, lazily."""
    return xr.apply_ufunc(
        pd.linear_recurrence,
        data.keep,
        data.inflow,
        kwargs={"axis": -1},
        dask="allowed",
    )


def main(reservoirs: int = 4, days: int = 20_000, chunk: int = 365) -> xr.DataArray:
    data = make_data(reservoirs, days, chunk)
    found = levels(data)
    print(f"{found.sizes['time']} days in {len(found.chunks[1])} chunks")
    found = found.compute()
    whole = pb.linear_recurrence(data.keep.values, data.inflow.values, axis=-1)
    print("same bytes as one array:", found.values.tobytes() == whole.tobytes())
    print(f"highest level {float(found.max()):.1f}")
    return found


if __name__ == "__main__":
    main()
