"""The maths of every op, as plain Python on scalars, forward beside backward.

A formula knows nothing of memory, loops or dtypes. It calls the functions of
:mod:`pullback.formulas.primitives` by name, and each backend rebinds those names to its own
instructions before compiling the very same function objects.
"""
