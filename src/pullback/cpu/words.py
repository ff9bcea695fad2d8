"""Words of the parameter block, and sizes that launches share with the loops.

No compiler is needed to know them: a process that loads its kernels imports none.
"""

from __future__ import annotations

from ..core.elements import ELEMENTS

# Elements that kernels compute at a time, each in a lane of its own.
LANES = 8
ITEMSIZE = {name: element.itemsize for name, element in ELEMENTS.items()}

# Words of the block, int64 each.
UNITS = 0  # independent rows, or rows of tiles
EXTENT = 1  # length of the op's axis (of the product of its axes)
BLOCKS = 2  # blocks the axis is cut into
SCRATCH = 3  # address of the workspace
OUTER_RANK = 4
AXIS_RANK = 5
OUTER = 6  # word at which the outer sizes begin, followed by strides per operand
AXIS = 7  # word at which the axis sizes begin, followed by strides per operand
COLUMNS = 8  # number of columns (columns schedules)
TILE = 9  # columns per tile
TILES = 10  # tiles per unit
CONSTANTS = 11  # float64 bits of the extent and of the op's data parameters
FRONT = 18  # float64 bits of the index of the first position in forward order
STRAINED = 19  # set by a plain kernel that met what only scaled arithmetic can hold
PARTS = 20  # parts a row is cut into, where threads share rows
STREAMED = 21  # alignment from which outputs are written past the caches, or 0: never
ORIGIN = 22  # index, in memory, of the position that the loops come to first
TURN = 23  # 1, or -1 where the loops go from the last index to the first
MOVING = 24  # whether a pass over rows that are cut is to be taken once more
FAR = 25  # what is read lies beyond a core's own cache (1), or beyond all (2)
OPERANDS = 26  # address and column stride of each operand

# Data parameters of an op are known to kernels by number, see data.py.
MOST_DATA = 6
CONSTANT_NAMES = ("extent", *(f"data{k}" for k in range(MOST_DATA)))

# Bytes of a cache line, as far as stores past the caches go.
LINE = 64
# Elements of a row that are folded by themselves; blocks are joined in order.
BLOCK = 4096
# Elements scanned from the identity before the carry of what came before is put in front.
SCAN_BLOCK = 512

# Columns per tile at most: wide enough that memory is read in long runs. Of 512, 1024 and 2048
# columns, 1024 were fastest within the caches, and 2048 beyond: a softmax_backward of 16384x8192
# float32 took 94 ms so, 103 by 1024 and 127 by 512.
WIDEST_TILE = 2048
WIDEST_NEAR = 1024
# Elements of a tile up to which what is lifted of them is kept for what comes next, on the stack.
KEPT = 1 << 16
# Of scans (256 columns took a third longer at 4096 x 4096).
WIDEST_ONE_WAY = 1024
WIDEST_BOTH_WAYS = 512
# Positions that a two-way scan reads twice in a row, so that they are still near the second time.
GROUP = 64


def groups_of(extent: int) -> int:
    """Groups of an axis."""
    return -(-extent // GROUP)
