"""The torch functions follow from the catalog: names, signatures, docstrings, kinds added later."""

from __future__ import annotations

import ast
import doctest
import inspect
import math
from pathlib import Path

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

import pullback as pb
import pullback.torch as pt
from pullback.core.catalog import register, unregister
from pullback.core.declare import Text
from pullback.core.rows.reduce import declare_reduce
from pullback.core.rows.scan import declare_scan
from pullback.formulas.folds import add
from pullback.formulas.primitives import exp, where
from pullback.formulas.record import Monoid, Pass, RowFormula, ScanFormula
from pullback.torch.counterparts import COUNTERPARTS
from torch_ops import EVERY_KIND, KINDS, PUBLIC, data, function, leaf

# torch's own, at the first use of forward mode.
pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.script:DeprecationWarning")

PACKAGE = Path(pt.__file__).parent
# Those that are made from rows.
FUNCTIONS = [n for n in pt.__all__ if getattr(getattr(pt, n), "__module__", "") == pt.__name__]


def test_every_kind_has_its_function():
    assert [PUBLIC.get(kind, kind) for kind in EVERY_KIND] == FUNCTIONS
    assert set(COUNTERPARTS) <= set(EVERY_KIND)


@pytest.mark.parametrize("name", pt.__all__)
def test_docstrings_are_true(name):
    made = getattr(pt, name)
    assert inspect.getmodule(made).__name__.startswith("pullback.torch")
    if name in FUNCTIONS:
        for parameter in inspect.signature(made).parameters:
            assert f"\n{parameter} : " in made.__doc__, parameter
    runner = doctest.DocTestRunner()
    for test in doctest.DocTestFinder(recurse=False).find(made, name, module=False, globs={}):
        shown: list[str] = []
        runner.run(test, out=shown.append)
        assert not shown, "".join(shown)


def test_module_docstring_is_true():
    shown: list[str] = []
    (test,) = doctest.DocTestFinder(recurse=False).find(pt, "pt", globs={})
    doctest.DocTestRunner().run(test, out=shown.append)
    assert not shown, "".join(shown)


def test_stub_has_the_signatures():
    """What type checkers read is what runs."""
    tree = ast.parse((PACKAGE / "__init__.pyi").read_text(encoding="utf-8"))
    made = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    stubs = {node.name: node.args for node in reversed(made)}  # the first of overloads
    assert set(FUNCTIONS) <= set(stubs)
    for name in FUNCTIONS:
        kinds: dict[str, object] = {}
        args = stubs[name]
        positional = [*args.posonlyargs, *args.args]
        defaults = [None] * (len(positional) - len(args.defaults)) + args.defaults
        for argument, default in zip(positional, defaults, strict=True):
            kinds[argument.arg] = default
        keyword = {a.arg: d for a, d in zip(args.kwonlyargs, args.kw_defaults, strict=True)}
        signature = inspect.signature(getattr(pt, name)).parameters
        assert list(signature) == [*kinds, *keyword], name
        for parameter in signature.values():
            only = parameter.kind is inspect.Parameter.KEYWORD_ONLY
            assert only == (parameter.name in keyword), (name, parameter)
            default = {**kinds, **keyword}[parameter.name]
            given = inspect.Parameter.empty if default is None else ast.literal_eval(default)
            # A stub has no word for an infinite default.
            spelt = ... if parameter.default in (math.inf, -math.inf) else parameter.default
            assert given == spelt, (name, parameter)


def test_importing_pullback_does_not_import_torch():
    from scripts import run_script

    run_script("import sys, pullback; assert 'torch' not in sys.modules")


# A kind torch does not have: a softened sum, y = Σ exp(x), and its running sum.


def itself(total):
    return total


def expx(x):
    return exp(x)


def times_exp(x, dy):
    return where(dy == 0, 0.0, exp(x) * dy)


def passed_on(dy):
    return dy


def times_exp_sum(x, total):
    return exp(x) * total


SUMMED = Monoid(expx, add, (0.0,), ("total",))
NEW = [
    *declare_reduce(
        "sumexp",
        Text("y = Σ exp(x)"),
        Text("dx = exp(x)·dy"),
        RowFormula((Pass(SUMMED),), finish=itself),
        RowFormula(apply=times_exp),
        ("x",),
    ),
    *declare_scan(
        "cumsumexp",
        Text("y[j] = Σ_{i≤j} exp(x[i])"),
        Text("dx[j] = exp(x[j])·Σ_{i≥j} dy[i]"),
        ScanFormula(SUMMED, itself, inclusive=True, against=False),
        ScanFormula(
            Monoid(passed_on, add, (0.0,), ("total",)), times_exp_sum, inclusive=True, against=True
        ),
        ("x",),
    ),
]


@pytest.fixture
def new_kinds():
    for op in NEW:
        register(op)
    yield
    for op in NEW:
        unregister(op.name)


@pytest.mark.usefixtures("new_kinds")
def test_a_kind_added_later_is_served():
    x = leaf(3, 5)
    for name, own in (("sumexp", torch.sum), ("cumsumexp", torch.cumsum)):
        ours = getattr(pt, name)

        def run(x, ours=ours):
            return ours(x, 1)

        torch.testing.assert_close(run(x), own(x.exp(), 1))
        assert gradcheck(run, x, check_forward_ad=True, check_batched_grad=True)
        assert gradgradcheck(run, x)
        batch = data((2, 3, 5))
        assert torch.equal(torch.func.vmap(run)(batch)[1], run(batch[1]))
        tangent = data((3, 5), seed=1)
        got, want = (
            torch.func.jvp(f, (x.detach(),), (tangent,))[1]
            for f in (run, lambda x, own=own: own(x.exp(), 1))
        )
        torch.testing.assert_close(got, want)
        compiled = torch.compile(run, fullgraph=True, backend="aot_eager")
        assert torch.equal(compiled(x), run(x))
        torch._dynamo.reset()


def test_a_kind_taken_out_is_gone():
    assert not hasattr(pt, "sumexp")
    with pytest.raises(AttributeError, match="sumexp"):
        pt.sumexp  # noqa: B018


def test_catalog_formulas_in_torch_ops_agree_with_the_kernels():
    """The evaluator that second derivatives of new kinds rest on, on every kind it can run."""
    from pullback.torch.operations import operation

    for op in pb.catalog():
        if op.family == "segment" or op.kind not in KINDS:
            continue
        made = operation(op.kind)
        chosen = {"axis": 1, "reverse": True, "keepdims": True, "correction": 0.5, "weight": 0.3}
        if op.family == "reduce":
            chosen["axis"] = (0, 2)
        for ties in made.of.pair.backward.ties or (None,):
            given = {**made.of.beyond, **chosen, "ties": ties}
            params = tuple(given[n] for n in made.forward.names)
            tensors = [data((3, 5, 4), seed=k).round(decimals=1) for k in range(made.count)]
            y = made(params, *tensors)
            if op.direction == "forward":
                got, want = made.forward.evaluated(params, *tensors), y
            else:
                backward = made.backward_parameters(params, tensors)
                given = (data(tuple(y.shape), seed=7), *made.path.saved(tensors, (y,)))
                got = made.backward.evaluated(backward, *given)
                want = made.pull(backward, *given)
            torch.testing.assert_close(got, want, msg=f"{op.name} {ties}")


def test_names_are_not_made_twice():
    assert function("cumsum") is pt.cumsum
