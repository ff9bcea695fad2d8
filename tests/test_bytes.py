"""The same bytes whatever the layout, the batch, the API, the buffer and the thread count."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

import pullback as pb
from cells import LAYOUTS, OPS, Cell, Fenced, as_tuple, outputs_for, run_fenced, same_bytes
from grid import EVERY, default, variants
from pullback.cpu import launch, pool
from quick_data import quick_operands, quick_run

# The first has lanes along the axis in C order and across columns in Fortran order, the second
# the other way round. Extents pass a group of 64 and end inside a vector.
PLACES = [((9, 3, 70), -1), ((70, 3, 9), 0)]


# One op for each way to walk columns that do not lie packed, which "mixed" brings about: a kernel
# takes a second to compile, and what it does with strides does not depend on the formula.
MIXED = {
    "cumsum", "cumprod_backward", "logcumsumexp_backward", "cummax_backward", "sum", "std",
    "std_backward", "prod_backward", "max_backward", "softmax", "softmax_backward", "lerp",
    "lerp_backward", "segment_sum", "segment_sum_backward",
}  # fmt: skip


def layouts(cell: Cell) -> list[str]:
    mixed = cell.element == "f32" and cell.op.name in MIXED
    return [name for name in LAYOUTS if name != "mixed" or mixed]


def places(op: pb.Op, element: str) -> list[Cell]:
    """Cells that reach each schedule of an op, with parameters that change the walk."""
    base = default(op, element)
    if op.family == "segment":
        cells = [replace(base, shape=(40, 19), num_segments=7, **v) for v in variants(op)]
        return cells if element == "f32" else cells[:1] + cells[-1:]
    chosen = [replace(base, shape=shape, axis=axis) for shape, axis in PLACES]
    if element != "f32":
        del chosen[1:]
    if op.family == "scan" and element in ("f32", "f64"):
        chosen += [replace(cell, reverse=True) for cell in chosen]
    if op.family == "reduce" and element == "f32":
        chosen.append(replace(base, shape=(9, 10, 8), axis=(0, 2)))
    return chosen


def describe(cell: Cell, what: str) -> str:
    return f"{cell}: other bytes {what}"


@pytest.mark.parametrize(("name", "element"), EVERY)
def test_layouts(name, element):
    for cell in places(OPS[name], element):
        given = quick_operands(cell)
        base = run_fenced(cell, given)
        for layout in layouts(cell):
            result = run_fenced(cell, given, layout)
            for output in base:
                assert same_bytes(result[output], base[output]), describe(cell, f"in {layout}")
            cell.cover(layout, "layout")
        check_every_operand_differently(cell, given, base)
        check_broadcast(cell, given)


def layouts_of_operands(cell: Cell) -> list[str]:
    """Layouts to give to one operand each.

    Operands whose axes lie in different orders are walked by columns that are not packed, whose
    kernels are the slowest to compile. That walk is shown for every op in float32, and in every
    element type for an op of each loop nest (``MIXED``): what it does with strides depends on the
    loop nest, how it reads and writes elements on their type, neither on both. The other pairs of
    op and type have operands that lie in one order, with steps and signs of their own.
    """
    if cell.element == "f32" or cell.op.name in MIXED:
        return layouts(cell)
    return ["C", "sliced", "negative"]


def check_every_operand_differently(cell, given, base):
    """Each operand in a layout of its own, turn by turn."""
    names = [*(n for n in given if n != "segment_ids"), *cell.op.outputs]
    known = layouts_of_operands(cell)
    for turn in range(1, 4):
        picked = {n: known[(k * 2 + turn) % len(known)] for k, n in enumerate(names)}
        inputs = {
            n: a if n == "segment_ids" else Fenced(a.shape, a.dtype, picked[n], a).array
            for n, a in given.items()
        }
        outputs = {n: Fenced(a.shape, a.dtype, picked[n]) for n, a in base.items()}
        cell.run_plan(inputs, {n: f.array for n, f in outputs.items()})
        for name, fenced in outputs.items():
            assert fenced.check() is None
            assert same_bytes(fenced.array, base[name]), describe(cell, f"in {picked}")
    cell.cover("one for each operand", "layout")


def check_broadcast(cell, given):
    """An input with stride 0 along a dimension gives what its copy gives."""
    for name, axis in product(given, (0, -1)):
        array = given[name]
        if name == "segment_ids" or array.shape[axis] < 2:
            continue
        flat = np.broadcast_to(np.take(array, [0], axis=axis), array.shape)
        copied = quick_run(cell, {**given, name: flat.copy()})
        viewed = quick_run(cell, {**given, name: flat})
        for a, b in zip(copied, viewed, strict=True):
            assert same_bytes(a, b), describe(cell, f"with {name} broadcast along {axis}")
    cell.cover("broadcast", "layout")


@pytest.mark.parametrize(("name", "element"), EVERY)
def test_function_equals_plan(name, element):
    for cell in places(OPS[name], element):
        given = quick_operands(cell)
        planned = quick_run(cell, given)
        called = as_tuple(cell.run_function(given))
        fenced = outputs_for(cell, "sliced")
        outs = [f.array for f in fenced.values()]
        returned = as_tuple(cell.run_function(given, out=outs if len(outs) > 1 else outs[0]))
        for a, b, c, out in zip(planned, called, returned, outs, strict=True):
            assert same_bytes(a, b), describe(cell, "by function")
            assert same_bytes(a, c), describe(cell, "by function with out=")
            assert c is out
        assert all(f.check() is None for f in fenced.values())
        cell.cover("C", "function")


@pytest.mark.parametrize(("name", "element"), EVERY)
def test_alone_or_in_a_batch(name, element):
    """A row of a batch and the same row by itself; for segments, a column."""
    for cell in places(OPS[name], element):
        given = quick_operands(cell)
        batch = quick_run(cell, given)
        if cell.op.family == "segment":
            part = np.s_[:, 4:5]
            one = replace(cell, shape=(cell.shape[0], 1))
        elif cell.op.family == "lerp":
            part = np.s_[1:2, 2:3, 3:4]
            one = replace(cell, shape=(1, 1, 1))
        else:
            part = tuple(slice(None) if a in cell.axes else slice(1, 2) for a in range(3))
            one = replace(
                cell, shape=tuple(n if a in cell.axes else 1 for a, n in enumerate(cell.shape))
            )
        alone = {n: a if n == "segment_ids" else a[part] for n, a in given.items()}
        for whole, single in zip(batch, quick_run(one, alone), strict=True):
            assert same_bytes(np.ascontiguousarray(whole[part]), single), describe(cell, "alone")
        cell.cover("C", "alone")


@pytest.mark.parametrize(
    ("name", "element"), [pair for pair in EVERY if OPS[pair[0]].family != "segment"]
)
def test_in_place(name, element):
    """An output that is exactly an input of the same shape; extents beyond a block of a scan."""
    op = OPS[name]
    long = [default(op, element, (2, 1100)), default(op, element, (1100, 9), 0)]
    for cell, layout in product(places(op, element) + long, ("C", "mixed")):
        if layout not in layouts(cell):
            continue
        given = quick_operands(cell)
        base = quick_run(cell, given)
        for read, written in product(given, op.outputs):
            if given[read].shape != cell.shape_of(written):
                continue
            held = {n: Fenced(a.shape, a.dtype, layout, a) for n, a in given.items()}
            outputs = {n: Fenced(cell.shape_of(n), cell.dtype, layout) for n in op.outputs}
            outputs[written] = held[read]
            cell.run_plan(
                {n: f.array for n, f in held.items()}, {n: f.array for n, f in outputs.items()}
            )
            for n, expected in zip(op.outputs, base, strict=True):
                assert outputs[n].check() is None
                assert same_bytes(outputs[n].array, expected), describe(
                    cell, f"with {written} in the place of {read}"
                )
        cell.cover(layout, "in place")


@pytest.mark.parametrize(
    "op",
    [op for op in OPS.values() if op.family == "reduce" and op.direction == "backward"],
    ids=lambda op: op.name,
)
def test_reduction_in_place_of_dy(op):
    """Where nothing is reduced dy has the shape of dx."""
    cell = default(op, "f32", (7, 1, 9), 1)
    given = quick_operands(cell)
    (base,) = quick_run(cell, given)
    for read in [n for n in given if given[n].shape == cell.shape]:
        held = {n: a.copy() for n, a in given.items()}
        cell.run_plan(held, {"dx": held[read]})
        assert same_bytes(held[read], base), describe(cell, f"with dx in the place of {read}")


@pytest.mark.parametrize(("name", "element"), EVERY)
def test_threads(name, element, monkeypatch):
    """One, two and seven threads on few and many rows and columns, however small.

    The threshold is lowered, so that threads share arrays they would not be woken for.
    """
    monkeypatch.setattr(pool, "SERIAL_BYTES", 0)
    op = OPS[name]
    cells = places(op, element)
    if op.family == "segment":
        cells = [*cells, replace(cells[0], shape=(3000, 70), num_segments=900)]
    else:
        some = [((37, 70), 1), ((520, 300), 0), ((1100, 9), 0)]
        if element == "f32":  # few long rows are cut over threads, by kernels of their own
            some += [((1, 40_000), 1), ((2, 9000), 1), ((3, 40_000), 1)]
        cells = cells[:2] + [default(op, element, shape, axis) for shape, axis in some]
    for cell in cells:
        given = quick_operands(cell)
        base = quick_run(cell, given, threads=1)
        for threads in (2, 7):
            for a, b in zip(base, quick_run(cell, given, threads=threads), strict=True):
                assert same_bytes(a, b), describe(cell, f"on {threads} threads")
        cell.cover("C", "threads")


@pytest.mark.parametrize("element", ["f32", "bf16"])
@pytest.mark.parametrize("name", [n for n, op in OPS.items() if op.family != "segment"])
@pytest.mark.parametrize(("shape", "axis"), [((3, 71), 1), ((2, 1101), 1), ((5, 71), 0)])
def test_outputs_written_past_the_caches(name, element, shape, axis, monkeypatch):
    """Stores that bypass the caches need an alignment, which rows and buffers come by anyhow."""
    cell = default(OPS[name], element, shape, axis)
    given = quick_operands(cell)
    base = quick_run(cell, given)
    monkeypatch.setattr(launch, "STREAM_BYTES", 0)
    monkeypatch.setattr(launch, "STREAM_RUN", 0)
    for guard in (16, 17, 18, 20, 24, 31):
        outputs = {n: Fenced(cell.shape_of(n), cell.dtype, guard=guard) for n in cell.op.outputs}
        cell.run_plan(given, {n: f.array for n, f in outputs.items()})
        for fenced, expected in zip(outputs.values(), base, strict=True):
            assert fenced.check() is None, f"{cell} at {guard}: {fenced.check()}"
            assert same_bytes(fenced.array, expected), describe(cell, f"at {guard}")
    cell.cover("C", "past the caches")


@pytest.mark.parametrize("name", OPS)
def test_threads_on_large_arrays(name):
    """Sizes at which threads work without being told to, by every way to ask for them."""
    op = OPS[name]
    if op.family == "segment":
        cells = [replace(default(op, "f32", (40_000, 40)), num_segments=9000)]
    else:
        cells = [default(op, "f32", (3, 400_000)), default(op, "f32", (1500, 800), 0)]
    for cell in cells:
        given = quick_operands(cell)
        base = quick_run(cell, given, threads=1)
        fenced = outputs_for(cell)
        outputs = {n: f.array for n, f in fenced.items()}
        cell.plan().run(**given, **outputs, stream=pb.Stream(threads=2))
        assert all(f.check() is None for f in fenced.values()), f"{cell}: memory around it"
        before = pb.get_num_threads()
        try:
            pb.set_num_threads(7)
            called = as_tuple(cell.run_function(given))
        finally:
            pb.set_num_threads(before)
        for a, b, c in zip(base, outputs.values(), called, strict=True):
            assert same_bytes(a, b), describe(cell, "with Stream(threads=2)")
            assert same_bytes(a, c), describe(cell, "with set_num_threads(7)")
        cell.cover("C", "threads, large")


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
        cell = default(OPS[name], element, (5, n) if axis else (n, 5), axis)
        rng = np.random.default_rng(n)
        for k, (x, power) in enumerate(strained_rows(rng, n, element == "f64")):
            dy = rng.standard_normal(cell.shape_of("dy")) * 2.0**power
            x = np.ascontiguousarray(x if axis else x.T).astype(cell.dtype)
            given = {"x": x, "dy": dy.astype(cell.dtype)}
            (given["y"],) = as_tuple(cell.forward().run_function({"x": x}))
            (apart,) = quick_run(cell, given)
            held = x.copy()
            cell.run_plan({**given, "x": held}, {"dx": held})
            assert same_bytes(held, apart), describe(cell, f"in place, rows {k}")


@pytest.mark.parametrize("name", ["cumprod_backward", "cummax_backward", "prod_backward"])
def test_one_row_cut_over_threads(name, monkeypatch):
    """A two-way scan of one long row is cut into parts, each from the totals on both sides."""
    monkeypatch.setattr(pool, "SERIAL_BYTES", 0)
    for n, threads in ((70_001, (1, 2, 7)), (4_500, (1, 64))):  # 137 blocks, and fewer than threads
        cell = default(OPS[name], "f64", (1, n), 1)
        given = quick_operands(cell)
        given["x"] = spread_factors(np.random.default_rng(1), (1, n), 0.3, cell.dtype)
        (given["y"],) = as_tuple(cell.forward().run_function({"x": given["x"]}))
        given = {k: given[k] for k in cell.op.inputs}
        first, *others = (quick_run(cell, given, threads=t)[0] for t in threads)
        assert all(same_bytes(first, other) for other in others)
        assert np.isfinite(first).all()
