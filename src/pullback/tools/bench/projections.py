"""sparsemax and entmax15 by a full sort, as they are written where there is no kernel for them.

The size of the support is counted along the sorted row; its threshold is made of two sums up to
there. ``functions`` are those of NumPy, jax.numpy or torch, under NumPy's names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any


def of_arrays(module: Any) -> Any:
    """The functions of NumPy, or of another library with its names."""
    return SimpleNamespace(
        down=lambda x, axis: module.flip(module.sort(x, axis), axis),
        counts=lambda x, size: module.arange(1, size + 1, dtype=x.dtype),
        cumsum=lambda x, axis: module.cumsum(x, axis, dtype=x.dtype),
        total=lambda x, axis: module.sum(x, axis, keepdims=True),
        peak=lambda x, axis: module.max(x, axis, keepdims=True),
        at=module.take_along_axis,
        sqrt=module.sqrt,
        positive=lambda x: module.maximum(x, 0),
        as_type=lambda x, like: x.astype(like.dtype),
    )


def of_torch(torch: Any) -> Any:
    """The same of torch."""
    return SimpleNamespace(
        down=lambda x, axis: torch.sort(x, axis, descending=True).values,
        counts=lambda x, size: torch.arange(1, size + 1, dtype=x.dtype),
        cumsum=torch.cumsum,
        total=lambda x, axis: torch.sum(x, axis, keepdim=True),
        peak=lambda x, axis: torch.amax(x, axis, keepdim=True),
        at=torch.take_along_dim,
        sqrt=torch.sqrt,
        positive=lambda x: torch.clamp(x, min=0),
        as_type=lambda x, like: x.to(like.dtype),
    )


def _along(functions: Any, x: Any, axis: int) -> Any:
    """1, 2, 3 and so on along an axis."""
    shape = [1] * len(x.shape)
    shape[axis] = x.shape[axis]
    return functions.counts(x, x.shape[axis]).reshape(shape)


def sparsemax(functions: Any, x: Any, axis: int) -> Any:
    """The projection; x less its threshold where that is above 0."""
    z = x - functions.peak(x, axis)
    down = functions.down(z, axis)
    sums = functions.cumsum(down, axis)
    size = functions.total(1 + _along(functions, x, axis) * down > sums, axis)
    tau = (functions.at(sums, size - 1, axis) - 1) / functions.as_type(size, x)
    return functions.positive(z - tau)


def entmax15(functions: Any, x: Any, axis: int) -> Any:
    """The projection; the square of half of x less its threshold."""
    z = (x - functions.peak(x, axis)) / 2
    down, counts = functions.down(z, axis), _along(functions, x, axis)
    sums, squares = functions.cumsum(down, axis), functions.cumsum(down * down, axis)
    # What those in front exceed an element by, squared.
    size = functions.total(squares - 2 * down * sums + counts * down * down < 1, axis)
    count = functions.as_type(size, x)
    mean = functions.at(sums, size - 1, axis) / count
    spread = functions.at(squares, size - 1, axis) - count * mean * mean
    tau = mean - functions.sqrt(functions.positive(1 - spread) / count)
    return functions.positive(z - tau) ** 2


BY_SORT: Mapping[str, Callable[[Any, Any, int], Any]] = {
    "sparsemax": sparsemax,
    "entmax15": entmax15,
}
