"""A function beside its gradient: the saves are those of the backward, whatever the op."""

from __future__ import annotations

import numpy as np
import pytest

import pullback as pb
from pullback.core.pair import pair_of
from pullback.tools.case import Case
from pullback.tools.operands import make_operands

FORWARD = [op for op in pb.catalog() if op.direction == "forward" and pair_of(op.kind).backward]


@pytest.mark.parametrize("op", FORWARD, ids=lambda op: op.name)
def test_gives_what_the_backward_gives(op):
    case = Case.of(op, "f32", (5, 7), segments=3, axis=-1)
    given = make_operands(case)
    y, back = pb.vjp(getattr(pb, op.name), **given, **case.arguments)
    several = y if isinstance(y, tuple) else (y,)
    dy = np.ones_like(several[0])
    found = back(dy)
    pair = pair_of(op.kind)
    held = {**given, **case.arguments, **dict(zip(op.outputs, several, strict=False))}
    held |= {"shape": (5, 7), "num_inputs": 5}
    asked = {p.name for p in pair.backward.parameters} | {*pair.backward.inputs}
    held = {n: v for n, v in held.items() if n in asked and n not in pair.cotangents}
    lead = next(n for n, output in pair.cotangents.items() if output == op.outputs[0])
    expected = getattr(pb, pair.backward.name)(**{lead: dy}, **held)
    both = ((r if isinstance(r, tuple) else (r,)) for r in (found, expected))
    for got, want in zip(*both, strict=True):
        assert (got is None) == (want is None)
        assert got is None or got.tobytes() == want.tobytes()


def test_several_results_and_gradients():
    a, b = np.full(3, 0.5), np.ones(3)
    (y, final), back = pb.vjp(pb.linear_recurrence, a, b, initial=np.array(2.0), return_final=True)
    assert y[-1] == final
    both, one = back(np.ones(3), np.array(1.0)), back(np.ones(3))
    assert both[2] > one[2]
    out = np.empty(3), np.empty(3), np.empty(())
    assert back(np.ones(3), np.array(1.0), out=out)[0] is out[0]


def test_parameters_of_the_backward_alone():
    x = np.array([1.0, 3.0, 3.0])
    for ties, expected in (("first", [0, 1, 0]), ("all", [0, 1, 1])):
        y, back = pb.vjp(pb.max, x, ties=ties)
        assert y == 3.0
        assert back(np.array(1.0)).tolist() == expected
    with pytest.raises(pb.UnsupportedError, match=r"^ties: "):
        pb.vjp(pb.max, x, ties="middle")
    with pytest.raises(TypeError, match="ties"):
        pb.vjp(pb.sum, x, ties="all")


def test_what_has_no_gradient_is_refused():
    x = np.ones((2, 3))
    with pytest.raises(pb.UnsupportedError, match="gae: no gradient"):
        pb.vjp(pb.gae, x, x, x, gamma=0.9, lam=0.9)
    with pytest.raises(pb.InvalidProblemError, match=r"^function: "):
        pb.vjp(np.cumsum, x)
    with pytest.raises(pb.InvalidProblemError, match=r"^function: "):
        pb.vjp(pb.cumsum_backward, x)
    _, back = pb.vjp(pb.cross_entropy, x, np.array([0, 1]))
    with pytest.raises(pb.UnsupportedError, match="no gradient flows back from lse"):
        back(np.ones(2), np.ones(2))
    with pytest.raises(TypeError, match="expected 2 gradients"):
        back(np.ones(2), None, None)
