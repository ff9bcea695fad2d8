"""Every op and element type against the oracle, at the edges and on ordinary numbers."""

from __future__ import annotations

import pytest

from cell_data import operands
from cells import OPS, run_fenced
from grid import EVERY, defined_cells
from tolerance import exp_argument, failure


@pytest.mark.parametrize(("name", "element"), EVERY)
def test_equals_the_oracle(name, element):
    wrong = []
    for cell, kind, edge in defined_cells(OPS[name], element):
        given = operands(cell, kind)
        exact = cell.exact(given)
        results = run_fenced(cell, given)
        argument = exp_argument(given)
        for output, result in results.items():
            found = failure(cell, result, exact[output], argument)
            if found:
                wrong.append(f"[{kind}] {output} of {found}")
        cell.cover("C", edge)
    assert not wrong, f"{len(wrong)} cells:\n" + "\n".join(wrong[:20])
