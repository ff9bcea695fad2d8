"""Words of the parameter block of the kernel that joins states of blocks."""

# How many blocks a row has; addresses of the states in front of rows, of blocks, and of what is
# written: the states in front of blocks and behind rows. All are packed float64, components last.
BLOCKS, FRONT, STATES, FRONTS, TOTAL, WORDS = range(6)
