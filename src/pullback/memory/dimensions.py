"""Dimensions that memory walks as one."""

from __future__ import annotations

from collections.abc import Sequence


def merge(
    sizes: Sequence[int], strides: Sequence[Sequence[int]]
) -> tuple[list[int], list[list[int]]]:
    """Join neighbouring dimensions that every operand walks as one; drop those of size 1.

    Parameters
    ----------
    sizes
        Sizes of the dimensions.
    strides
        For each operand its steps along them.

    Examples
    --------
    >>> merge((2, 1, 3), [(3, 7, 1), (0, 0, 0)])
    ([6], [[1], [0]])
    """
    kept_sizes: list[int] = []
    kept: list[list[int]] = [[] for _ in strides]
    for d, size in enumerate(sizes):
        if size == 1:
            continue
        if kept_sizes and all(k[-1] == s[d] * size for k, s in zip(kept, strides, strict=True)):
            kept_sizes[-1] *= size
            for k, s in zip(kept, strides, strict=True):
                k[-1] = s[d]
        else:
            kept_sizes.append(size)
            for k, s in zip(kept, strides, strict=True):
                k.append(s[d])
    return kept_sizes, kept
