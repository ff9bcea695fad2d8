"""The one table of element types: what each is called, and how wide it is.

How storage widens to arithmetic and narrows back is for a backend to say
(``cpu/codegen/storage.py``, ``gpu/frame.py``); which types there are is said here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np


@dataclass(frozen=True)
class Element:
    """A type that operands may have.

    Attributes
    ----------
    name
        What it is called here.
    dtype
        The NumPy dtype, whose name is also that of torch and JAX.
    spellings
        Other names that are understood.
    triton
        What Triton calls it.
    computes_in
        The type a GPU computes in.
    """

    name: str
    dtype: np.dtype[Any]
    spellings: tuple[str, ...] = ()
    triton: str = ""
    computes_in: str = ""

    @property
    def itemsize(self) -> int:
        """Bytes per element."""
        return self.dtype.itemsize

    @property
    def is_float(self) -> bool:
        """Whether formulas are computed on it; the others are conditions, ids and offsets."""
        return bool(self.computes_in)


ELEMENTS = {
    element.name: element
    for element in (
        Element("f32", np.dtype(np.float32), ("single",), "fp32", "fp32"),
        Element("f64", np.dtype(np.float64), ("double",), "fp64", "fp64"),
        Element("f16", np.dtype(np.float16), ("half",), "fp16", "fp32"),
        Element("bf16", np.dtype(ml_dtypes.bfloat16), (), "bf16", "fp32"),
        Element("i32", np.dtype(np.int32), (), "i32"),
        Element("i64", np.dtype(np.int64), (), "i64"),
        Element("bool", np.dtype(np.bool_), (), "i1"),
    )
}

FLOATS = tuple(name for name, element in ELEMENTS.items() if element.is_float)
