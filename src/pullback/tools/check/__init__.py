"""Certify an installation: every op against its definition, and its bytes against themselves.

For each op and element type:

- values against the oracle, in units in the last place, for selections of its records, beside
  torch's where torch is installed;
- edges: zeros, ties, NaN and infinities where the op has a rule for them;
- bytes: the same for every memory layout, in place, and for every number of threads.

>>> from pullback.tools.bench import named_ops
>>> from pullback.tools.check import certify
>>> report = certify(named_ops(["sum"]), ("f32",), with_torch=False)
>>> report["results"][0]["ok"]
True
"""

from .certify import certify, check_one

__all__ = ["certify", "check_one"]
