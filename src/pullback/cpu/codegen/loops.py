"""A counted loop, for functions that are written as LLVM code."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from .lanes import I64


@contextmanager
def counted(builder: Any, count: Any) -> Iterator[Any]:
    """Code that runs for every index below a count, which is given as an LLVM value."""
    before = builder.block
    test, body, after = (builder.append_basic_block() for _ in range(3))
    builder.branch(test)
    builder.position_at_end(test)
    index = builder.phi(I64)
    index.add_incoming(I64(0), before)
    builder.cbranch(builder.icmp_signed("<", index, count), body, after)
    builder.position_at_end(body)
    yield index
    index.add_incoming(builder.add(index, I64(1)), builder.block)
    builder.branch(test)
    builder.position_at_end(after)
