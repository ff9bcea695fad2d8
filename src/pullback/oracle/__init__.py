"""Every op from its definition, in high precision; the yardstick the kernels are measured with.

The oracle imports the standard library, numpy, ml_dtypes, mpmath and itself, nothing else of
pullback, and follows the definitions in docs/ rather than the kernels' recurrences.

>>> import numpy as np
>>> from pullback.oracle import reference, round_to, ulp_error
>>> x = np.array([2.0, 0.0, 3.0])
>>> ref = reference("cumprod_backward", {"dy": np.ones(3), "x": x}, axis=-1)
>>> round_to(ref["dx"].value, "f64").tolist()
[1.0, 8.0, 0.0]
>>> ulp_error(np.array([1.0, 8.0, 0.0]), ref["dx"], "f64").tolist()
[0.0, 0.0, 0.0]

What it cannot catch:

- a mistake in the definitions themselves, which both sides follow (the tests compare with torch's
  autograd where the two agree);
- a wrong sign of zero: mpf has only one zero;
- anything but numbers: determinism, aliasing, writes outside the output, strides, speed;
- infinite inputs where the result depends on how a kernel groups its terms (inf - inf in one
  grouping, inf in another): the oracle reports what the ungrouped definition gives;
- an error below 2**-600 of ``Reference.magnitude``, its own rounding.
"""

from . import lerp, loss, recurrence, reduce, scan, segment, softmax  # noqa: F401  (fill the table)
from .table import Reference, names, reference
from .ulp import round_to, ulp_error

__all__ = ["Reference", "names", "reference", "round_to", "ulp_error"]
