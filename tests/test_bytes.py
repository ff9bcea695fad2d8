"""The same bytes whatever the layout, the batch, the API, the buffer and the thread count."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

import pullback as pb
from cells import (
    LAYOUTS,
    OPS,
    Fenced,
    arrays_of,
    cover,
    lies_anyhow,
    outputs_for,
    run_fenced,
    same_bytes,
)
from grid import (
    EVERY,
    default,
    gives_everything,
    has_axes,
    is_example,
    is_segmented,
    shows,
    variants,
)
from machines import assume
from pullback.core.declare import Op, Role, Type
from pullback.cpu import launch
from pullback.cpu.words import LANES
from pullback.formulas.record import ScanFormula
from pullback.tools.case import Case
from pullback.tools.choices import chosen
from quick_data import quick_operands, quick_run

# The first has lanes along the axis in C order and across columns in Fortran order, the second
# the other way round. Extents pass a group of 64 and end inside a vector.
PLACES = [((9, 3, 70), -1), ((70, 3, 9), 0)]


def layouts(case: Case) -> list[str]:
    """All of them, for an example of a loop nest; for other ops those that a step shows."""
    if not is_example(case.op):
        return ["C", "Fortran", "transposed", "sliced"]
    return [name for name in LAYOUTS if name != "mixed" or case.element == "f32"]


def places(op: Op, element: str) -> list[Case]:
    """Cases that reach each schedule of an op, with parameters that change the walk."""
    base = default(op, element)
    if is_segmented(op):
        cases = [chosen(base, v).but(shape=(40, 19), segments=7) for v in variants(op)]
        return cases if element == "f32" else cases[:1] + cases[-1:]
    some = [base.but(shape=shape, axis=axis) for shape, axis in PLACES]
    if element != "f32":
        del some[1:]
    # How memory is walked depends on the loop nest: one op shows for the others what a direction,
    # bent axes and every operand that may be left out do to it.
    if not is_example(op):
        return some
    if op.parameter("reverse") and element in ("f32", "f64"):
        some += [case.but(reverse=True) for case in some]
    if element == "f32":
        if has_axes(op):
            some.append(base.but(shape=(9, 10, 8), axis=(0, 2)))
        some += [chosen(some[0], v) for v in variants(op) if gives_everything(v)][:1]
    return some


def describe(case: Case, what: str) -> str:
    return f"{case}: other bytes {what}"


# Every op in float32; one op of each loop nest in another type, too, which differ in how an element
# is read and written alone.
SHOWN = [(n, e) for n, e in EVERY if shows(OPS[n], e, "strided")]


@pytest.mark.parametrize(("name", "element"), SHOWN)
def test_layouts(name, element):
    for case in places(OPS[name], element):
        given = quick_operands(case)
        base = run_fenced(case, given)
        for layout in layouts(case):
            result = run_fenced(case, given, layout)
            for output in base:
                assert same_bytes(result[output], base[output]), describe(case, f"in {layout}")
            cover(case, layout, "layout")
        # Operands whose axes lie in different orders, and columns of one number, are walked by
        # columns that are not packed, whose kernels are the slowest to compile.
        if is_example(case.op) or case.axes[-1] == len(case.shape) - 1:
            check_every_operand_differently(case, given, base)
            check_broadcast(case, given)


def check_every_operand_differently(case, given, base):
    """Each operand in a layout of its own, turn by turn."""
    names = [n for n in (*given, *case.outputs) if lies_anyhow(case, n)]
    known = layouts(case) if is_example(case.op) else ["C", "sliced", "negative"]
    for turn in range(1, 4):
        picked = {n: known[(k * 2 + turn) % len(known)] for k, n in enumerate(names)}
        inputs = {
            n: Fenced(a.shape, a.dtype, picked[n], a).array if n in picked else a
            for n, a in given.items()
        }
        outputs = {n: Fenced(a.shape, a.dtype, picked[n]) for n, a in base.items()}
        case.run(inputs, arrays_of(outputs))
        for name, fenced in outputs.items():
            assert fenced.check() is None
            assert same_bytes(fenced.array, base[name]), describe(case, f"in {picked}")
    cover(case, "one for each operand", "layout")


def is_refused_along(case: Case, name: str, axis: int) -> bool:
    """Whether an operand marks positions of a scan: one mark for all of them means nothing."""
    marks = case.op.operand(name).type is Type.BOOL and isinstance(case.formula, ScanFormula)
    return marks and axis % len(case.shape) in case.problem.axes


def check_broadcast(case, given):
    """An input with stride 0 along a dimension gives what its copy gives."""
    for name, axis in product(given, (0, -1)):
        array = given[name]
        if not lies_anyhow(case, name) or array.shape[axis] < 2:
            continue
        if is_refused_along(case, name, axis):
            continue
        flat = np.broadcast_to(np.take(array, [0], axis=axis), array.shape)
        copied = quick_run(case, {**given, name: flat.copy()})
        viewed = quick_run(case, {**given, name: flat})
        for a, b in zip(copied, viewed, strict=True):
            assert same_bytes(a, b), describe(case, f"with {name} broadcast along {axis}")
    cover(case, "broadcast", "layout")


@pytest.mark.parametrize(("name", "element"), SHOWN)
def test_function_equals_plan(name, element):
    cases = places(OPS[name], element)
    for case in cases if is_example(OPS[name]) else cases[:1]:
        given = quick_operands(case)
        planned = quick_run(case, given)
        called = case.results(given)
        fenced = outputs_for(case, "sliced")
        outs = [f.array for f in fenced.values()]
        returned = case.results(given, outs if len(outs) > 1 else outs[0])
        for a, b, c, out in zip(planned, called.values(), returned.values(), outs, strict=True):
            assert same_bytes(a, b), describe(case, "by function")
            assert same_bytes(a, c), describe(case, "by function with out=")
            assert c is out
        assert all(f.check() is None for f in fenced.values())
        cover(case, "C", "function")


@pytest.mark.parametrize(("name", "element"), SHOWN)
def test_alone_or_in_a_batch(name, element):
    """A row of a batch and the same row by itself; for segments, a column or a vector of them."""
    few = 1 if is_example(OPS[name]) or not is_segmented(OPS[name]) else LANES
    for case in places(OPS[name], element):
        given = quick_operands(case)
        batch = quick_run(case, given)
        bound = () if case.is_pointwise else case.axes
        part = tuple(
            slice(None) if a in bound else slice(1, 1 + few) for a in range(len(case.shape))
        )
        one = case.but(shape=tuple(n if a in bound else few for a, n in enumerate(case.shape)))
        alone = {n: a[part] if lies_anyhow(case, n) else a for n, a in given.items()}
        for whole, single in zip(batch, quick_run(one, alone), strict=True):
            assert same_bytes(np.ascontiguousarray(whole[part]), single), describe(case, "alone")
        cover(case, "C", "alone")


@pytest.mark.parametrize(
    ("name", "element"), [pair for pair in SHOWN if not is_segmented(OPS[pair[0]])]
)
def test_in_place(name, element):
    """An output that is exactly an input of the same shape; extents beyond a block of a scan."""
    op = OPS[name]
    long = [default(op, element, (2, 1100))]
    if shows(op, element, "columns"):
        long.append(default(op, element, (1100, 9), 0))
    for case, layout in product(places(op, element) + long, ("C", "mixed")):
        if layout not in layouts(case):
            continue
        given = quick_operands(case)
        base = quick_run(case, given)
        for read, written in product(given, case.outputs):
            same = given[read].shape == case.shape_of(written)
            if not same or given[read].dtype != case.dtype_of(written):
                continue
            held = {n: Fenced(a.shape, a.dtype, layout, a) for n, a in given.items()}
            outputs = outputs_for(case, layout) | {written: held[read]}
            if not case.plan().runnable(case.given).in_place:
                with pytest.raises(pb.InvalidProblemError, match=f"^{written}: .*{read}"):
                    case.run(arrays_of(held), arrays_of(outputs))
                continue
            case.run(arrays_of(held), arrays_of(outputs))
            for n, expected in zip(case.outputs, base, strict=True):
                assert outputs[n].check() is None
                assert same_bytes(outputs[n].array, expected), describe(
                    case, f"with {written} in the place of {read}"
                )
        cover(case, layout, "in place")


def spreads_rows(op: Op) -> bool:
    """Whether it reads one element a row and writes one for every position."""
    rows = any(o.role is Role.ROW and o.type is Type.ELEMENT for o in op.reads)
    return not is_segmented(op) and rows and any(o.role is Role.ELEMENT for o in op.writes)


@pytest.mark.parametrize("name", [n for n, op in OPS.items() if spreads_rows(op)])
def test_in_place_of_an_operand_of_rows(name):
    """Where an axis has one element, an operand with one for each row has the shape of the rest."""
    case = default(OPS[name], "f32", (7, 1, 9), 1)
    given = quick_operands(case)
    base = quick_run(case, given)
    for read, written in product(given, case.outputs):
        if given[read].dtype == case.dtype_of(written):
            held = {n: a.copy() for n, a in given.items()}
            outputs = {n: np.empty_like(a) for n, a in zip(case.outputs, base, strict=True)}
            outputs[written] = held[read]
            case.run(held, outputs)
            for a, b in zip(outputs.values(), base, strict=True):
                assert same_bytes(a, b), describe(case, f"with {written} in the place of {read}")


@pytest.mark.parametrize(("name", "element"), SHOWN)
def test_threads(name, element, monkeypatch):
    """One, two and seven threads on few and many rows and columns, however small.

    The threshold is lowered, so that threads share arrays they would not be woken for.
    """
    assume(monkeypatch, l2=0)
    op = OPS[name]
    cases = places(op, element)
    if is_segmented(op):
        cases = [*cases, cases[0].but(shape=(3000, 70), segments=900)]
    else:
        some = [((37, 70), 1)]
        if shows(op, element, "columns"):
            some += [((520, 300), 0), ((1100, 9), 0)]
        # Few long rows are cut over threads, by kernels of their own.
        if element == "f32" and is_example(op):
            some += [((1, 40_000), 1), ((2, 9000), 1), ((3, 40_000), 1)]
        cases = cases[:2] + [default(op, element, shape, axis) for shape, axis in some]
    for case in cases:
        given = quick_operands(case)
        base = quick_run(case, given, threads=1)
        for threads in (2, 7):
            for a, b in zip(base, quick_run(case, given, threads=threads), strict=True):
                assert same_bytes(a, b), describe(case, f"on {threads} threads")
        cover(case, "C", "threads")


def unaligned() -> list[tuple[str, str, tuple[int, int], int]]:
    rows, columns = [((3, 71), 1), ((2, 1101), 1)], [((5, 71), 0)]
    return [
        (name, element, *place)
        for name, element in SHOWN
        if not is_segmented(OPS[name])
        for place in rows + columns * shows(OPS[name], element, "columns")
    ]


@pytest.mark.parametrize(("name", "element", "shape", "axis"), unaligned())
def test_outputs_written_past_the_caches(name, element, shape, axis, monkeypatch):
    """Stores that bypass the caches need an alignment, which rows and buffers come by anyhow."""
    case = default(OPS[name], element, shape, axis)
    given = quick_operands(case)
    base = quick_run(case, given)
    assume(monkeypatch, last_level=0)
    monkeypatch.setattr(launch, "STREAM_RUN", 0)
    for guard in (16, 17, 18, 20, 24, 31):
        outputs = {n: Fenced(case.shape_of(n), case.dtype_of(n), guard=guard) for n in case.outputs}
        case.run(given, arrays_of(outputs))
        for fenced, expected in zip(outputs.values(), base, strict=True):
            assert fenced.check() is None, f"{case} at {guard}: {fenced.check()}"
            assert same_bytes(fenced.array, expected), describe(case, f"at {guard}")
    cover(case, "C", "past the caches")


@pytest.mark.parametrize("name", OPS)
def test_threads_on_large_arrays(name):
    """Sizes at which threads work without being told to, by every way to ask for them."""
    op = OPS[name]
    if is_segmented(op):
        cases = [default(op, "f32", (40_000, 40)).but(segments=9000)]
    else:
        long = (3, 400_000) if is_example(op) else (1500, 800)
        cases = [default(op, "f32", long), default(op, "f32", (1500, 800), 0)]
    for case in cases:
        given = quick_operands(case)
        base = quick_run(case, given, threads=1)
        fenced = outputs_for(case)
        outputs = arrays_of(fenced)
        case.plan().run(**given, **outputs, stream=pb.Stream(threads=2))
        assert all(f.check() is None for f in fenced.values()), f"{case}: memory around it"
        before = pb.get_num_threads()
        try:
            pb.set_num_threads(7)
            called = case.results(given).values()
        finally:
            pb.set_num_threads(before)
        for a, b, c in zip(base, outputs.values(), called, strict=True):
            assert same_bytes(a, b), describe(case, "with Stream(threads=2)")
            assert same_bytes(a, c), describe(case, "with set_num_threads(7)")
        cover(case, "C", "threads, large")


def spread_factors(rng, shape, spread: float, dtype) -> np.ndarray:
    """Factors of either sign over so many powers of two, one of them zero in the first row."""
    x = rng.choice([-1.0, 1.0], shape) * 2.0 ** rng.uniform(-spread, spread, shape)
    x[0, shape[1] // 2] = 0.0
    return x.astype(dtype)


def strained_rows(rng, n: int, wide: bool):
    """Rows of factors, and a power of two for the gradient, that try the range of a float64.

    Products that wander; that fall or rise all along a row, so that only a large or small gradient
    brings the result back; and that fall at both ends, so that no carry is small by itself.
    """
    for spread in (0.3, 3.0, 20.0, 70.0):
        yield spread_factors(rng, (5, n), spread, np.float64), 0
    whole, back = (1150, 190) if wide else (250, 100)
    for sign in (-1, 1):
        x = spread_factors(rng, (5, n), 0.3, np.float64)
        yield x * 2.0 ** (sign * whole / n), -sign * back
    x = spread_factors(rng, (5, n), 0.3, np.float64)
    x[:, :8] *= 2.0**-90
    x[:, -8:] *= 2.0**-90
    yield x, 700 if wide else 100


@pytest.mark.parametrize("element", ["f32", "f64"])
@pytest.mark.parametrize("name", ["cumprod_backward", "prod_backward"])
def test_plain_products_have_the_bits_of_scaled_ones(name, element):
    """A run in place is scaled from the start; one into another buffer first tries without."""
    for n, axis in product((70, 700, 9000), (0, 1)):
        case = default(OPS[name], element, (5, n) if axis else (n, 5), axis)
        rng = np.random.default_rng(n)
        for k, (x, power) in enumerate(strained_rows(rng, n, element == "f64")):
            dy = rng.standard_normal(case.shape_of("dy")) * 2.0**power
            x = np.ascontiguousarray(x if axis else x.T).astype(case.dtype)
            given = {"x": x, "dy": dy.astype(case.dtype)}
            given |= case.forward().results({"x": x})
            (apart,) = quick_run(case, given)
            held = x.copy()
            case.run({**given, "x": held}, {"dx": held})
            assert same_bytes(held, apart), describe(case, f"in place, rows {k}")


@pytest.mark.parametrize("form", ["plain", "exclusive", "resets"])
def test_terms_that_plain_products_lose_leave_no_sign(form):
    """A sum with a zero gradient keeps a negative term that float64 cannot hold, if it is scaled.

    In place it is, and beside a row that overflows; a row by itself is not.
    """
    rng = np.random.default_rng(7)
    rows, n = 40, 700
    x = (rng.choice([-1.0, 1.0], (rows, n)) * 2.0 ** rng.uniform(-60, -1, (rows, n))).astype("f4")
    dy = np.where(rng.random((rows, n)) < 0.7, 0.0, rng.standard_normal((rows, n))).astype("f4")
    x[:2], x[1, 3] = -(2.0**-79), 2.0**-79  # an even and an odd number of signs
    dy[:2], dy[:2, -1] = 0.0, 1.0
    x[-1] = 1e30
    keywords: dict = {"plain": {}, "exclusive": {"exclusive": True}}.get(form, {})
    if form == "resets":
        keywords["resets"] = rng.random((1, n)) < 0.005
    beside = pb.cumprod_backward(dy, x=x, axis=1, **keywords)
    held = x.copy()
    pb.cumprod_backward(dy, x=held, axis=1, out=held, **keywords)
    assert same_bytes(held, beside)
    for k in range(rows):
        row = slice(k, k + 1)
        alone = pb.cumprod_backward(dy[row], x=x[row], axis=1, **keywords)
        assert same_bytes(alone, beside[row]), f"row {k}"


@pytest.mark.parametrize("name", ["cumprod_backward", "cummax_backward"])
def test_one_row_cut_over_threads(name, monkeypatch):
    """A two-way scan of one long row is cut into parts, each from the totals on both sides."""
    assume(monkeypatch, l2=0)
    for n, threads in ((70_001, (1, 2, 7)), (4_500, (1, 64))):  # 137 blocks, and fewer than threads
        case = default(OPS[name], "f64", (1, n), 1)
        given = quick_operands(case)
        given["x"] = spread_factors(np.random.default_rng(1), (1, n), 0.3, case.dtype)
        given |= case.forward().results({"x": given["x"]})
        given = {k: given[k] for k in case.op.inputs if k in given}
        first, *others = (quick_run(case, given, threads=t)[0] for t in threads)
        assert all(same_bytes(first, other) for other in others)
        assert np.isfinite(first).all()
