"""Cases: what a seed and a number stand for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from cell_data import LARGEST, SMALLEST
from cells import OPS
from fuzzing.definitions import UNKNOWN, expected, is_known
from fuzzing.memory import Layout, packed
from grid import is_defined
from pullback.core import parse
from pullback.tools.case import Case as Cell
from pullback.tools.case import cuts
from pullback.tools.choices import chosen, selectors
from pullback.tools.operands import make_operands

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

# Values of parameters that are data.
VALUES = {
    parse.correction: (0, 1, 1, 2, 2.5, 40),
    parse.real: (0.3, 0.0, -0.0, 1.0, -2.5, 1e3, np.nan, np.inf),
    parse.out_of_range: ("raise", "drop"),
}

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

    ops: tuple[str, ...] = tuple(n for n in OPS if is_known(n))
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
    fields: dict[str, Any] = {}
    if cuts(op):
        shape = (*shape, 3, 2)[:2] if len(shape) < 2 else shape
        fields["segments"] = int(rng.choice([1, 2, 5, max(1, shape[0] // 3), shape[0] + 3]))
        fields["is_sorted"] = bool(rng.random() < 0.5)
    known = {n: v for n, v in selectors(op).items() if n not in UNKNOWN}
    if not shape:  # an array without axes is a number
        known = {
            n: v for n, v in known.items() if op.parameter(n.lstrip("+")) is None or n[0] != "+"
        }
    choice = {n: v[int(rng.integers(len(v)))] for n, v in known.items()}
    for p in op.parameters:
        if p.parse in VALUES:
            fields[p.name] = VALUES[p.parse][int(rng.integers(len(VALUES[p.parse])))]
        elif p.parse is parse.flag and p.name not in ("keepdims", "sorted") and not p.choices:
            fields[p.name] = bool(rng.random() < 0.5)
    axis = op.parameter("axis")
    if axis is not None:
        fields["axis"] = _axis(rng, op, shape, axis.parse is parse.axes)
    made = chosen(Cell.of(op, element, shape), choice).but(**fields)
    if op.refuses_empty and not is_defined(made, kind="normal"):  # of nothing there is no extreme
        return made.but(shape=tuple(max(n, 1) for n in shape))
    return made


def _axis(rng: Rng, op: Any, shape: tuple[int, ...], several: bool) -> Any:
    rank = max(len(shape), 1)
    axis: Any = int(rng.integers(-rank, rank))
    if several and rng.random() < 0.5:
        some = [int(a) for a in rng.permutation(rank)[: rng.integers(0, rank + 1)]]
        axis = None if rng.random() < 0.3 else tuple(some) if shape else ()
    if op.name in SLOW and shape and shape[axis] > LONGEST_SLOW:
        axis = int(np.argmin(shape))
    return axis


def _values(rng: Rng, cell: Any, kind: str, name: str) -> Any:
    """Numbers of a kind, in the element type."""
    shape = cell.shape_of(name)
    x = rng.standard_normal(shape)
    low, high = np.log2(SMALLEST[cell.element]), np.log2(LARGEST[cell.element])
    if cell.op.kind in SQUARED and cell.element == "f64":
        low, high = -SQUARED_EXPONENT, SQUARED_EXPONENT
    sign = np.where(x < 0, -1.0, 1.0)
    if kind == "wide":
        high = min(high, 9.0) if cell.has_exponentials else high / 4
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


def round_to(value: Any, dtype: Any) -> Any:
    with np.errstate(all="ignore"):
        return np.asarray(value.astype(np.float64)).astype(dtype)


def _operands(rng: Rng, cell: Any, kind: str) -> dict[str, Any]:
    moved = cell.op.kind in WITH_ANY_DY and rng.random() < 0.5
    zero = rng.random() < 0.1

    def draw(one: Any, name: str, drawn: Rng) -> Any:
        gradient = name in one.cotangents
        x = _repeat(drawn, _values(drawn, one, "normal" if gradient and not moved else kind, name))
        return np.zeros_like(x) if gradient and zero else x

    made = make_operands(cell, int(rng.integers(1 << 31)), draw, _saved)
    narrow = str(rng.choice(["i4", "i8"]))
    return {n: a.astype(narrow) if a.dtype == np.int64 else a for n, a in made.items()}


def _saved(forward: Any, operands: Any) -> dict[str, Any]:
    found = expected(forward, operands)
    return {n: round_to(v.value, forward.dtype_of(n)) for n, v in found.items()}


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
    shapes |= {n: cell.shape_of(n) for n in cell.outputs}
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
    if form == "plan" and cell.is_segmented and len(cell.shape) != 2:
        return "function"
    return form


def suits_front_ends(cell: Any) -> bool:
    """Whether torch and JAX mean by this call what the library means, and it is small."""
    op = cell.op
    if op.direction != "forward" or not cell.shape or 0 in cell.shape or cell.get("axis") == ():
        return False
    if op.parameter("correction") and cell.extent - cell.get("correction") < 1:
        return False  # torch and JAX divide by what is left, however little it is
    finite = np.isfinite(cell.get("weight") if op.parameter("weight") else 0.0)
    small = int(np.prod(cell.shape)) <= 5000
    return small and bool(finite) and cell.get("out_of_range") in (None, "raise")


def make(seed: int, number: int, settings: Settings) -> Case:
    """The case of a number."""
    rng = np.random.default_rng([seed, number])
    cell = _cell(rng, settings)
    form = _form(rng, cell, settings)
    kind = str(rng.choice(FRONT_KINDS if form.startswith("pullback.") else KINDS))
    operands = _operands(rng, cell, kind)
    layouts = _layouts(rng, cell, operands)
    out = form == "plan" or bool(rng.random() < 0.6)
    full = [
        n for n in operands if cell.shape_of(n) == cell.shape and cell.dtype_of(n) == cell.dtype
    ]
    in_place = None
    target = cell.outputs[0]
    if out and full and not cell.is_segmented and rng.random() < 0.15:
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
