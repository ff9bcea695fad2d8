"""Vectors, arithmetic, storage and operands: what the loops are written with."""
