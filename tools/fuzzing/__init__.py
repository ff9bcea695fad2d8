"""The parts of the fuzzer; ``tools/fuzz.py`` runs them.

A case is a number: with the seed it fixes op, element type, shape, strides, values, threads and the
kind of call. The cells, element types and tolerances are those of the suite (``tests/``).
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))
