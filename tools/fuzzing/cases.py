"""Cases: what a seed and a number stand for."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from cell_data import EXPONENTIAL, LARGEST, SMALLEST
from cells import OPS, Cell
from fuzzing.definitions import expected
from fuzzing.memory import Layout, packed

Rng = np.random.Generator

# Lengths around what the schedules count in: 8 lanes, blocks of 64, 512 and 4096 positions, groups
# of 8192, tiles of 1024 columns.
CORNERS = (7, 8, 9, 15, 16, 17, 63, 64, 65, 511, 512, 513, 1023, 1024, 1025, 4095, 4096, 4097)
FAR_CORNERS = (8191, 8192, 8193, 12289, 16385)
# What the definitions of these take, element after element in Python, bounds their rows.
SLOW = ("cumprod_backward",)
LONGEST_SLOW = 20_000
# Squares of float64 may leave its range inside var and std.
SQUARED = ("var", "std")
SQUARED_EXPONENT = 500
# dy of any class: only where no factor that underflows meets it.
WITH_ANY_DY = ("cumsum", "cummax", "cummin", "sum", "mean", "max", "min", "lerp", "segment_sum")

KINDS = (
    "normal", "normal", "normal", "wide", "offset", "ties", "some zeros", "all zero", "equal",
    "tiny", "huge", "infinite", "nan", "minus inf", "anything",
)  # fmt: skip
# The frameworks have rules of their own for nan.
FRONT_KINDS = ("normal", "wide", "offset", "ties", "some zeros", "tiny")
FORMS = ("function", "plan", "torch memory", "pullback.torch", "pullback.jax")
FORM_WEIGHTS = (0.48, 0.37, 0.07, 0.06, 0.02)


@dataclass(frozen=True)
class Settings:
    """What cases are drawn from."""

    ops: tuple[str, ...] = tuple(OPS)
    elements: tuple[str, ...] = ("f32", "f64", "f16", "bf16")
    largest: int = 1 << 21
    front_ends: bool = True


@dataclass
class Case:
    """One call: a cell, where its operands lie, how it is made, and a second way to make it."""

    cell: Any
    kind: str
    form: str
    operands: dict[str, Any]
    layouts: dict[str, Layout]
    out: bool
    in_place: str | None
    threads: int
    other_threads: int
    workspace: bool
    hostile: int

    def __str__(self) -> str:
        shown = {n: (x.order, x.steps, x.signs, x.edge) for n, x in self.layouts.items()}
        words = [
            str(self.cell),
            f"values={self.kind}",
            f"by {self.form}",
            f"threads={self.threads}",
        ]
        words += [f"out={self.in_place or self.out}", f"workspace={self.workspace}"]
        return " ".join([*words, f"layouts={shown}"])


def _shape(rng: Rng, name: str, element: str, settings: Settings) -> tuple[int, ...]:
    size = rng.random()
    rank = int(rng.integers(0, 6))
    if size < 0.7 or not rank:
        most = {1: 200, 2: 40, 3: 14}.get(rank, 7)
        return tuple(int(n) for n in rng.integers(0 if rng.random() < 0.1 else 1, most, rank))
    corner = int(rng.choice(CORNERS if size < 0.9 else FAR_CORNERS)) + int(rng.integers(-1, 2))
    budget = 40_000
    if size >= 0.96:
        # From some megabytes on threads share the work, and outputs from 8 MB are written past
        # the caches.
        item = {"f64": 8, "f32": 4}.get(element, 2)
        budget = min(settings.largest, int(rng.integers(3, 20)) * (1 << 20) // (2 * item))
        rank = min(rank, 3)
        if rng.random() < 0.3:
            corner = int(rng.integers(budget // 3, budget))
    if name in SLOW:
        corner = min(corner, LONGEST_SLOW)
    shape = [1] * rank
    shape[int(rng.integers(rank))] = corner
    for k in rng.permutation(rank):
        if shape[k] == 1:
            shape[k] = int(rng.integers(1, max(2, min(4000, budget // int(np.prod(shape))))))
    return tuple(shape)


def _cell(rng: Rng, settings: Settings) -> Any:
    op = OPS[str(rng.choice(list(settings.ops)))]
    element = str(rng.choice(list(settings.elements)))
    shape = _shape(rng, op.name, element, settings)
    ties = str(rng.choice(op.ties)) if op.ties else None
    if op.family == "segment":
        shape = (*shape, 3, 2)[:2] if len(shape) < 2 else shape
        segments = int(rng.choice([1, 2, 5, max(1, shape[0] // 3), shape[0] + 3]))
        return Cell(
            op, element, shape, num_segments=segments, is_sorted=bool(rng.random() < 0.5),
            out_of_range=str(rng.choice(["raise", "drop"])),
        )  # fmt: skip
    rank = max(len(shape), 1)
    axis: Any = int(rng.integers(-rank, rank))
    if op.family == "reduce" and rng.random() < 0.5:
        some = [int(a) for a in rng.permutation(rank)[: rng.integers(0, rank + 1)]]
        axis = None if rng.random() < 0.3 else tuple(some) if shape else ()
    if op.name in SLOW and shape and shape[axis] > LONGEST_SLOW:
        axis = int(np.argmin(shape))
    cell = Cell(
        op, element, shape, axis, reverse=bool(op.family == "scan" and rng.random() < 0.5),
        ties=ties, correction=float(rng.choice([0, 1, 1, 2, 2.5, 40])),
        weight=float(rng.choice([0.3, 0.0, -0.0, 1.0, -2.5, 1e3, np.nan, np.inf])),
    )  # fmt: skip
    if op.kind in ("max", "min") and cell.extent == 0 and 0 not in cell.kept:
        return replace(cell, shape=tuple(max(n, 1) for n in shape))
    return cell


def _values(rng: Rng, cell: Any, kind: str, shape: tuple[int, ...]) -> Any:
    """Numbers of a kind, in the element type."""
    x = rng.standard_normal(shape)
    low, high = np.log2(SMALLEST[cell.element]), np.log2(LARGEST[cell.element])
    if cell.op.kind in SQUARED and cell.element == "f64":
        low, high = -SQUARED_EXPONENT, SQUARED_EXPONENT
    sign = np.where(x < 0, -1.0, 1.0)
    if kind == "wide":
        high = min(high, 9.0) if cell.op.kind in EXPONENTIAL else high / 4
        x = sign * 2.0 ** rng.uniform(max(low, -200.0), high, shape)
    elif kind == "offset":
        x = x + float(rng.choice([10.0, -300.0, 1e4]))
    elif kind == "ties":
        x = rng.integers(-2, 3, shape).astype(float)
    elif kind == "all zero":
        x = np.where(rng.random(shape) < 0.5, 0.0, -0.0)
    elif kind == "equal":
        x = np.full(shape, 0.1)
    elif kind == "tiny":
        x = rng.integers(-9, 10, shape) * 2.0**low
    elif kind == "huge":
        x = sign * 2.0**high * rng.uniform(0.5, 1.0, shape)
    elif kind == "anything":
        x = sign * 2.0 ** rng.uniform(low, high, shape)
    x = np.asarray(x)
    rare = rng.random(shape) < float(rng.choice([0.01, 0.2]))
    if kind in ("some zeros", "anything"):
        x = np.where(rare, 0.0, x)
    if kind in ("infinite", "anything"):
        x = np.where(rng.random(shape) < 0.02, np.inf * sign, x)
    if kind in ("nan", "anything"):
        x = np.where(rng.random(shape) < 0.01, np.nan, x)
    if kind == "minus inf":
        x = np.where(rare, -np.inf, x)
    with np.errstate(over="ignore"):
        return np.asarray(x).astype(cell.dtype)


def _repeat(rng: Rng, x: Any) -> Any:
    """Now and then constant along an axis, so that it may be a broadcast view."""
    if x.ndim and x.size and rng.random() < 0.15:
        a = int(rng.integers(x.ndim))
        x = np.ascontiguousarray(np.broadcast_to(np.take(x, [0], a), x.shape))
    return x


def _ids(rng: Rng, cell: Any) -> Any:
    low, high = (
        (-2, cell.num_segments + 2) if cell.out_of_range == "drop" else (0, cell.num_segments)
    )
    ids = rng.integers(low, high, cell.shape[0])
    return (np.sort(ids) if cell.is_sorted else ids).astype(str(rng.choice(["i4", "i8"])))


def round_to(value: Any, dtype: Any) -> Any:
    with np.errstate(all="ignore"):
        return np.asarray(value.astype(np.float64)).astype(dtype)


def _operands(rng: Rng, cell: Any, kind: str) -> dict[str, Any]:
    op = cell.op
    if op.family == "segment":
        name = "input" if op.direction == "forward" else "d_output"
        x = _values(rng, cell, kind, cell.shape_of(name))
        return {name: _repeat(rng, x), "segment_ids": _ids(rng, cell)}
    if op.direction == "forward":
        return {n: _repeat(rng, _values(rng, cell, kind, cell.shape)) for n in op.inputs}
    dy_kind = kind if op.kind in WITH_ANY_DY and rng.random() < 0.5 else "normal"
    made = {"dy": _repeat(rng, _values(rng, cell, dy_kind, cell.shape_of("dy")))}
    if rng.random() < 0.1:
        made["dy"] = np.zeros_like(made["dy"])
    x = _repeat(rng, _values(rng, cell, kind, cell.shape))
    if "x" in op.needs:
        made["x"] = x
    if "y" in op.needs and cell.extent:
        made["y"] = round_to(expected(cell.forward(), {"x": x})["y"].value, cell.dtype)
    elif "y" in op.needs:
        made["y"] = np.zeros(cell.shape_of("y"), cell.dtype)
    return {n: made[n] for n in op.inputs}


def _layout(rng: Rng, shape: tuple[int, ...], values: Any = None) -> Layout:
    """Any layout; axes along which the values are the same may be repeated."""
    rank = len(shape)
    kind = rng.random()
    order = tuple(range(rank)) if kind < 0.5 else tuple(range(rank))[::-1]
    if kind > 0.75:
        order = tuple(int(a) for a in rng.permutation(rank))
    steps, signs = [1] * rank, [1] * rank
    if rng.random() < 0.4:
        steps = [int(s) for s in rng.choice([1, 1, 1, 2, 3], rank)]
    if rng.random() < 0.3:
        signs = [int(s) for s in rng.choice([1, -1], rank)]
    if values is not None and values.size and rng.random() < 0.7:
        raw = values.view(f"u{values.itemsize}")
        steps = [
            0 if n > 1 and (raw == raw.take([0], a)).all() else step
            for a, (n, step) in enumerate(zip(shape, steps, strict=True))
        ]
    edge = str(rng.choice(["end", "end", "start", "middle"]))
    return Layout(order, tuple(steps), tuple(signs), edge, int(rng.integers(0, 40)))


def _layouts(rng: Rng, cell: Any, operands: dict[str, Any]) -> dict[str, Layout]:
    shapes = {n: a.shape for n, a in operands.items()}
    shapes |= {n: cell.shape_of(n) for n in cell.op.outputs}
    how = rng.random()
    if how < 0.4:
        edge = str(rng.choice(["end", "start"]))
        return {n: packed(shape, edge) for n, shape in shapes.items()}
    if how < 0.65:
        shared = _layout(rng, cell.shape)
        return {n: shared if len(s) == len(cell.shape) else packed(s) for n, s in shapes.items()}
    return {n: _layout(rng, shape, operands.get(n)) for n, shape in shapes.items()}


def _form(rng: Rng, cell: Any, settings: Settings) -> str:
    form = str(rng.choice(FORMS, p=FORM_WEIGHTS))
    if form.startswith("pullback.") and not (settings.front_ends and suits_front_ends(cell)):
        form = "function"
    if form == "plan" and cell.op.family == "segment" and len(cell.shape) != 2:
        return "function"
    return form


def suits_front_ends(cell: Any) -> bool:
    """Whether torch and JAX mean by this call what the library means, and it is small."""
    op = cell.op
    if op.direction != "forward" or not cell.shape or 0 in cell.shape or cell.axis == ():
        return False
    if op.kind in ("var", "std") and cell.extent - cell.correction < 1:
        return False  # torch and JAX divide by what is left, however little it is
    small = int(np.prod(cell.shape)) <= 5000
    return small and bool(np.isfinite(cell.weight)) and cell.out_of_range == "raise"


def make(seed: int, number: int, settings: Settings) -> Case:
    """The case of a number."""
    rng = np.random.default_rng([seed, number])
    cell = _cell(rng, settings)
    form = _form(rng, cell, settings)
    kind = str(rng.choice(FRONT_KINDS if form.startswith("pullback.") else KINDS))
    operands = _operands(rng, cell, kind)
    layouts = _layouts(rng, cell, operands)
    out = form == "plan" or bool(rng.random() < 0.6)
    full = [n for n in operands if cell.shape_of(n) == cell.shape and n != "segment_ids"]
    in_place = None
    if out and full and cell.op.family != "segment" and rng.random() < 0.15:
        target = cell.op.outputs[0]
        in_place = str(rng.choice(full))
        if cell.shape_of(target) != cell.shape or 0 in layouts[in_place].steps:
            in_place = None
        else:
            layouts[target] = layouts[in_place]
    threads, other = (int(t) for t in rng.choice([1, 2, 3, 4], 2))
    return Case(
        cell, kind, form, operands, layouts, out, in_place, threads, other,
        bool(rng.random() < 0.5), int(rng.integers(1 << 31)),
    )  # fmt: skip
