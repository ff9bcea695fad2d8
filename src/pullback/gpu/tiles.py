"""Sizes of tiles, warps and chunks: pure functions of shape and element type."""

from __future__ import annotations

from dataclasses import dataclass

WARP = 32
MOST_WARPS = 16
# Blocks that every lane folds for itself before the lanes join.
STEPS = 8
# A row is cut into chunks for programs of their own if there are fewer programs than FEW and it
# has at least LONG elements; then MANY programs are aimed at. Two waves on a large GPU are 264.
FEW = 128
MANY = 512
LONG = 2**16
MOST_CHUNKS = 256
# Partial states of all chunks that one program joins.
MOST_PARTIALS = 4096


@dataclass(frozen=True)
class Tile:
    """What one program works on.

    Attributes
    ----------
    units, block
        Rows (or columns) side by side, and elements along the axis; powers of two.
    warps
        Warps of a program.
    chunk, chunks
        Elements along the axis that a program walks in turn, and how many programs share a row.
    """

    units: int
    block: int
    warps: int
    chunk: int
    chunks: int

    @property
    def is_split(self) -> bool:
        """Whether several programs share a row."""
        return self.chunks > 1

    def is_whole(self, length: int) -> bool:
        """Whether the axis fits one block."""
        return length <= self.block


def ceil_to_power(n: int) -> int:
    """The smallest power of two that is at least n."""
    return 1 << max(0, n - 1).bit_length()


def _ceil(n: int, step: int) -> int:
    return -(-n // step)


# Elements per thread that are loaded before anything is computed, by the work done on them: two
# or four vectors of 16 bytes. A scan that runs both ways holds up to six states for each.
_PER_THREAD = {
    "pointwise": {2: 16, 4: 8, 8: 4},
    "fold": {2: 16, 4: 16, 8: 8},
    "scan": {2: 8, 4: 8, 8: 4},
    "both ways": {2: 8, 4: 8, 8: 4},
}


def choose_tile(
    work: str, item: int, length: int, units: int, outer: int = 1, across: bool = False
) -> Tile:
    """Tile, warps and chunks.

    Parameters
    ----------
    work
        ``"pointwise"``, ``"fold"``, ``"scan"`` or ``"both ways"``.
    item
        Bytes per element.
    length, units, outer
        Elements along the axis, units that a tile may span, and other rows.
    across
        Whether lanes lie across units.
    """
    per_thread = _PER_THREAD[work][item]
    if across and work != "pointwise":
        # Every lane keeps the states of its own columns.
        per_thread = max(4, per_thread // 2)
    usual = 4 * WARP * per_thread
    most = MOST_WARPS * WARP * per_thread if work != "pointwise" else usual
    whole = ceil_to_power(length)
    if across:
        # 128 bytes of a row side by side at least, where there are as many.
        span = min(ceil_to_power(units), max(128 // item, usual // whole))
        block = whole if whole * span <= most else max(1, usual // span)
    else:
        block = whole if whole <= most else usual
        span = min(ceil_to_power(units), max(1, usual // block))
    block = min(block, whole)
    warps = min(MOST_WARPS, max(1, ceil_to_power(span * block // (WARP * per_thread))))
    if work == "pointwise":
        return Tile(span, block, warps, block, _ceil(length, block))
    programs = _ceil(units, span) * outer
    chunks = 1
    step = block * (STEPS if work == "fold" else 1)
    if programs < FEW and length * span >= LONG and length > block:
        most_chunks = min(MOST_CHUNKS, MOST_PARTIALS // span)
        chunks = min(most_chunks, _ceil(MANY, programs), _ceil(length, 2 * step))
    chunk = max(step, _ceil(_ceil(length, chunks), step) * step)
    return Tile(span, block, warps, chunk, max(1, _ceil(length, chunk)))


@dataclass(frozen=True)
class SegmentTile:
    """What one program of a segment sum works on.

    Attributes
    ----------
    rows, columns
        Of the tile; powers of two.
    warps
        Warps of a program.
    parts
        Programs that share a segment.
    """

    rows: int
    columns: int
    warps: int
    parts: int


def choose_segment_tile(item: int, inputs: int, columns: int, segments: int) -> SegmentTile:
    """Tile of a segment sum, and into how many parts a segment is cut.

    Parts depend on the mean length of a segment, as the ids are on the device.
    """
    width = min(ceil_to_power(columns), 256 // item)
    mean = max(1, inputs // max(1, segments))
    height = min(ceil_to_power(mean), 1024 // width, 64)
    warps = min(4, max(1, width * height // (WARP * 8)))
    programs = segments * _ceil(columns, width)
    parts = 1
    if programs < FEW and mean >= 16 * height:
        parts = min(64, _ceil(MANY, programs), mean // (8 * height))
    return SegmentTile(height, width, warps, parts)


def choose_gather_tile(item: int, columns: int) -> SegmentTile:
    """Tile of a gather of rows."""
    width = min(ceil_to_power(columns), 2048 // item)
    height = max(1, 4 * WARP * (16 // item) // width)
    return SegmentTile(height, width, 4 if width * height >= 1024 else 1, 1)
