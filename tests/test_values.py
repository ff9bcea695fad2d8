"""Every op and element type against the oracle, at the edges and on ordinary numbers."""

from __future__ import annotations

import pytest

from cell_data import operands
from cells import OPS, cover, run_fenced
from grid import EVERY, defined_cases
from tolerance import wrong_with


@pytest.mark.parametrize(("name", "element"), EVERY)
def test_equals_the_oracle(name, element):
    wrong = []
    for case, kind, edge in defined_cases(OPS[name], element):
        given = operands(case, kind)
        wrong += [f"[{kind}] {w}" for w in wrong_with(case, given, run_fenced(case, given))]
        cover(case, "C", edge)
    assert not wrong, f"{len(wrong)} cells:\n" + "\n".join(wrong[:20])
