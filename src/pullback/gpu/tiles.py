"""Sizes of tiles, warps and chunks: pure functions of shape, element type and kind of GPU."""

from __future__ import annotations

from dataclasses import dataclass

WARP = 32
MOST_WARPS = 16
# Blocks that every lane folds for itself before the lanes join.
STEPS = 8
# A row is cut into chunks for programs of their own if it has at least LONG elements and there are
# fewer programs than FEW, or than MANY where a second look at the elements is taken anyway; then
# MANY programs are aimed at. A large GPU has 132 to 304 cores.
FEW = 128
MANY = 512
# Bytes to ask for before the first arrive: 3.35 TB/s for 0.6 microseconds. Tiles grow up to it.
IN_FLIGHT = 2**21
# Blocks that a loop asks for ahead at the most, and bytes of shared memory that they may take.
MOST_AHEAD = 4
AHEAD_BYTES = 2**15
# What memory is read in, at the least.
SECTOR = 32
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
    tail
        Elements at the end of a row that are held for the next look while blocks before them are
        read again; a power of two, or 0.
    cores
        How many hold a block together, as a cluster.
    """

    units: int
    block: int
    warps: int
    chunk: int
    chunks: int
    tail: int = 0
    cores: int = 1

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


def _floor_to_power(n: int) -> int:
    return 1 << (n.bit_length() - 1)


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


# Elements of a row, all its operands together, that the registers of a core hold for a second look,
# and of one of them. Half floats are held as float32, beside what they are widened from, or from
# HELD_NARROW elements on as they are, by all the threads that a program may have. A core has 256 KB
# of registers, or as many times that as its Room says.
_HELD = {2: 2**16, 4: 2**15, 8: 2**14}
_MOST_HELD = {2: 2**15, 4: 2**15, 8: 2**14}
HELD_NARROW = 2**15
# Of an operand, in each core of a cluster; with twice as much the exp of softmax spills.
_MOST_IN_CLUSTER = {2: 2**14, 4: 2**14, 8: 2**12}
# Of an operand of which the tail is held, beside what a loop needs.
_MOST_TAIL = {2: 2**15, 4: 2**14, 8: 2**13}
# Rows up to here are held as far as that goes. What one program reads of a longer row before it
# comes back to it, on all cores at once, is more than their cache has.
LONGEST_TAILED = 2**16


@dataclass(frozen=True)
class Room:
    """What a GPU has for rows that are held.

    Attributes
    ----------
    registers
        Of a core, in 256 KB.
    cores
        That may hold a row together: a cluster, which exchanges through shared memory.
    """

    registers: int = 1
    cores: int = 1


# A core by itself, with the registers that every GPU has.
ALONE = Room()
# Of a cluster: as many as fit on every GPU that has clusters, but for slices of one.
MOST_CORES = 8


def room_of(arch: str) -> Room:
    """What the GPUs of an architecture, ``"sm_90"`` or ``"gfx942"``, have."""
    if arch.startswith("gfx"):
        return Room(registers=2)
    if arch.startswith("sm_") and int(arch[3:]) >= 90:
        return Room(cores=MOST_CORES)
    return ALONE


def choose_tile(
    work: str,
    item: int,
    length: int,
    units: int,
    outer: int = 1,
    across: bool = False,
    held: int = 0,
    tailed: int = 0,
    room: Room = ALONE,
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
    held
        Operands of a fold that are looked at more than once.
    tailed
        The same where a row is not held as a whole.
    room
        What there is to hold them.
    """
    per_thread = _PER_THREAD[work][item]
    if across and work != "pointwise" and (item != 2 or work == "both ways"):
        # Every lane keeps the states of its own columns. Of half floats twice as many threads, each
        # with half as much, would leave fewer programs at once and 1.5 MB in flight instead of 2.
        per_thread = max(4, per_thread // 2)
    usual = 4 * WARP * per_thread
    most = (4 if work == "pointwise" else MOST_WARPS) * WARP * per_thread
    whole = ceil_to_power(length)
    may_hold = not across and whole > most and units * outer >= FEW
    if held and may_hold:
        # More of one operand, or of half floats, would spill.
        most_held = _HELD[item] * (room.registers if item > 2 else 1)
        most_held = _floor_to_power(min(most_held // held, _MOST_HELD[item]))
        if whole <= most_held:
            return Tile(1, whole, _warps_to_hold(item, whole, held), whole, 1)
        cores = whole // min(most_held, _MOST_IN_CLUSTER[item])
        # A record that reads a longer row once needs no others to hold it.
        if tailed and cores <= room.cores:
            return Tile(1, whole, MOST_WARPS, whole, 1, cores=cores)
    tail = _floor_to_power(min(_HELD[item] // tailed, _MOST_TAIL[item])) if tailed else 0
    # What lies before a tail is whole blocks, the last of which ends within the row.
    if tail >= most and may_hold and length <= LONGEST_TAILED:
        return Tile(1, most, _warps_to_hold(item, tail, tailed), whole, 1, tail)
    if across:
        # 128 bytes of a row side by side at least, where there are as many.
        span = min(ceil_to_power(units), max(128 // item, usual // whole))
        block = whole if whole * span <= most else max(1, usual // span)
    else:
        block = whole if whole <= most else usual
        # Every thread computes the values of all rows of its tile: of fewer, two warps.
        several = usual // 2 if work == "fold" else usual
        span = min(ceil_to_power(units), max(1, several // block))
    block = min(block, whole)
    if work == "pointwise":
        warps = _warps(span * block, per_thread)
        return Tile(span, block, warps, block, _ceil(length, block))

    def programs(span: int) -> int:
        return _ceil(units, span) * outer

    def chunks(span: int, block: int) -> int:
        enough = MANY if work == "fold" else FEW
        if programs(span) >= enough or length * span < LONG or length <= block:
            return 1
        most_chunks = min(MOST_CHUNKS, MOST_PARTIALS // span)
        step = block * (STEPS if work == "fold" else 1)
        return min(most_chunks, _ceil(MANY, programs(span)), _ceil(length, 2 * step))

    def asked(span: int, block: int, cuts: bool) -> int:
        """Bytes that all programs ask for at once."""
        shares = chunks(span, block) if cuts else 1
        return programs(span) * shares * span * block * item

    def grown(span: int, block: int, cuts: bool) -> tuple[int, int]:
        """A tile large enough for programs to ask for IN_FLIGHT bytes, as far as it helps."""
        # A loop over the blocks of a scan holds carries too: of eight warps of one that runs both
        # ways (240 registers a thread) a core holds one program, of four (160) it holds three.
        warps = {"fold": MOST_WARPS, "both ways": 4}.get(work, 8)
        while block < whole and asked(span, block, cuts) < IN_FLIGHT:
            narrower = span
            if span * block >= warps * WARP * per_thread:
                if not across or span * item <= SECTOR:
                    break
                narrower = span // 2
            # Larger blocks may leave fewer chunks.
            if 2 * asked(narrower, 2 * block, cuts) < 3 * asked(span, block, cuts):
                break
            span, block = narrower, 2 * block
        return span, block

    # Cutting the axis of a scan takes a second look at its elements: without it, if that will do.
    uncut = grown(span, block, cuts=False)
    if work == "fold" or programs(uncut[0]) < FEW:
        span, block = grown(span, block, cuts=True)
    else:
        span, block = uncut
    step = block * (STEPS if work == "fold" else 1)
    count = chunks(span, block)
    chunk = max(step, _ceil(_ceil(length, count), step) * step)
    warps = _warps(span * block, per_thread)
    return Tile(span, block, warps, chunk, max(1, _ceil(length, chunk)))


def choose_stages(nbytes: int, programs: int) -> int:
    """Blocks of a loop under way at once: those asked for ahead, and the one that is computed.

    ``nbytes`` is what a program reads for a block. Half the programs are taken to run at once, for
    lack of registers, and of MANY or more half of MANY.
    """
    ahead = min(MOST_AHEAD, max(2, _ceil(2 * IN_FLIGHT, min(programs, MANY) * nbytes)))
    return 1 + max(1, min(ahead, AHEAD_BYTES // nbytes))


def _warps_to_hold(item: int, elements: int, operands: int) -> int:
    narrow = item == 2 and elements >= HELD_NARROW
    return 2 * MOST_WARPS if narrow or elements * operands > _HELD[item] else MOST_WARPS


def _warps(elements: int, per_thread: int) -> int:
    return min(MOST_WARPS, max(1, ceil_to_power(elements // (WARP * per_thread))))


@dataclass(frozen=True)
class SegmentTile:
    """What one program works on that takes rows by their ids.

    Attributes
    ----------
    rows, columns
        Of the tile; powers of two.
    warps
        Warps of a program.
    """

    rows: int
    columns: int
    warps: int


@dataclass(frozen=True)
class RunTiles:
    """How segments are cut.

    Attributes
    ----------
    short, long
        Tiles of segments up to a chunk, and of the chunks of longer ones.
    chunk
        Rows that one program walks in turn.
    """

    short: SegmentTile
    long: SegmentTile
    chunk: int


def choose_run_tiles(
    item: int, inputs: int, columns: int, segments: int, states: int = 1
) -> RunTiles:
    """Tiles of a fold of segments whose states are so many numbers.

    How long each segment is only the device knows: most are taken to have the mean length, and any
    may be longer than a chunk.
    """
    width = min(ceil_to_power(columns), 256 // item)
    most = 1024 // width
    # Eight elements of five numbers each are more than a thread of sm_86 has registers for.
    each, most_warps = (8, 4) if states < 4 else (4, 8)

    def tile(height: int) -> SegmentTile:
        return SegmentTile(height, width, min(most_warps, max(1, width * height // (WARP * each))))

    mean = ceil_to_power(inputs // max(1, segments))
    # Enough chunks for MANY programs, should all rows belong to one segment.
    aim = ceil_to_power(inputs * _ceil(columns, width) // (2 * MANY))
    chunk = max(most, min(2048, max(256, aim)))
    return RunTiles(tile(min(max(8, mean), most)), tile(most), chunk)


def choose_gather_tile(item: int, columns: int) -> SegmentTile:
    """Tile of rows that are computed one by one."""
    width = min(ceil_to_power(columns), 2048 // item)
    height = max(1, 4 * WARP * (16 // item) // width)
    return SegmentTile(height, width, 4 if width * height >= 1024 else 1)
