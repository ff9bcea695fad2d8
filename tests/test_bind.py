"""Formula functions bound to an evaluator's primitives: what is replaced, and what is kept."""

from __future__ import annotations

import pytest

from pullback.formulas import primitives
from pullback.formulas.bind import Binder, primitives_of, specialise
from pullback.formulas.primitives import exp, log

SCALAR = {name: getattr(primitives, name) for name in primitives.PRIMITIVES}
OFFSET = 100.0


def halved(x):
    return log(x) / 2.0


def with_offset(x):
    return exp(x) + halved(x) + OFFSET


def made(inner, factor):
    """A formula function with a closure and a default."""

    def closed(x, more=1.0):
        return inner(x) * factor + more

    return closed


def worded(**words):
    return Binder({**SCALAR, **words})


def test_primitives_are_replaced_in_all_that_is_called():
    bind = worded(exp=lambda v: 10.0 * v, log=lambda v: 8.0 * v)
    assert bind(with_offset)(1.0) == 10.0 + 4.0 + OFFSET
    assert bind(with_offset).__code__ is with_offset.__code__
    assert primitives_of(with_offset) == {"exp", "log"}


def test_a_function_is_bound_once():
    bind = worded()
    assert bind(with_offset) is bind(with_offset)
    assert bind(with_offset) is not worded()(with_offset)


def test_closures_and_defaults_are_kept():
    bind = worded(log=lambda v: 8.0 * v)
    assert bind(made(halved, 3.0))(1.0) == 4.0 * 3.0 + 1.0
    assert bind(made(halved, 3.0))(1.0, 2.0) == 4.0 * 3.0 + 2.0
    assert primitives_of(made(halved, 3.0)) == {"log"}


def test_inner_functions_are_bound_too():
    def apply(x):
        return (lambda v: exp(v) + OFFSET)(x)

    assert worded(exp=lambda v: 10.0 * v)(apply)(1.0) == 10.0 + OFFSET
    assert primitives_of(apply) == {"exp"}


def test_bound_functions_and_numbers_may_become_something_else():
    bind = Binder(SCALAR, wrap=lambda f: (f,), constant=lambda v: v + 1.0)
    (bound,) = bind(with_offset)
    assert bound.__globals__["OFFSET"] == OFFSET + 1.0
    assert bound.__globals__["halved"] is bind(halved)
    assert bound.__qualname__ == "with_offset"


def test_specialised_functions_have_names_of_their_own():
    def tripled(x):
        return 3.0 * x

    special = specialise(with_offset, halved=tripled)
    assert special(0.0) == 1.0 + OFFSET
    assert special.__qualname__ == "with_offset_tripled"
    assert worded(exp=lambda v: v)(special)(2.0) == 2.0 + 6.0 + OFFSET


def test_an_evaluator_has_all_primitives():
    with pytest.raises(TypeError, match="exponent, mantissa"):
        Binder({n: f for n, f in SCALAR.items() if n not in ("mantissa", "exponent")})


def test_kernels_of_different_closures_are_kept_apart():
    """The cache of kernels goes by what a formula computes, of which cells are a part."""
    from pullback.cpu.compile import code_digest

    digests = {code_digest((made(f, v),)) for f in (halved, with_offset) for v in (2.0, 3.0)}
    assert len(digests) == 4
    assert code_digest((made(halved, 2.0),)) == code_digest((made(halved, 2.0),))
