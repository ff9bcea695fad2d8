"""Ranges of positions of several dimensions that are one in their order, as boxes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

Box = tuple[slice, ...]


def boxes(lengths: Sequence[int], start: int, stop: int) -> Iterator[Box]:
    """The positions ``[start, stop)`` of dimensions that are one in their order, as few boxes.

    Examples
    --------
    >>> list(boxes((4, 10), 5, 27))
    [(slice(0, 1, None), slice(5, 10, None)), (slice(1, 2, None), slice(0, 10, None)), \
(slice(2, 3, None), slice(0, 7, None))]
    """
    if start >= stop:
        return
    if len(lengths) <= 1:
        yield (slice(start, stop),) if lengths else ()
        return
    inner = math.prod(lengths[1:])
    first, last = start // inner, (stop - 1) // inner
    whole = [slice(0, n) for n in lengths[1:]]
    if first == last:
        for box in boxes(lengths[1:], start - first * inner, stop - first * inner):
            yield (slice(first, first + 1), *box)
        return
    if start % inner:
        yield from boxes(lengths, start, (first + 1) * inner)
        first += 1
    full = stop // inner
    if first < full:
        yield (slice(first, full), *whole)
    if stop % inner:
        for box in boxes(lengths[1:], 0, stop - full * inner):
            yield (slice(full, full + 1), *box)
