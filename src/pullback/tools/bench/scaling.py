"""Time against the number of elements, against the number of zeros and against threads."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from ...core.declare import Op
from ..case import Case, cuts
from ..operands import make_operands, make_outputs, ordinary
from .harness import Settings, heading, thread_count
from .machine import available_memory, usable_cores
from .timing import Times, interleave
from .verify import verify

# Operands are drawn up to this size and repeated beyond it; results are checked up to it.
DRAWN = 10**6
# Below this, what is measured is the cost of a call.
FITTED = 10**5
ZEROS = (0, 1, 2, 10, 1000, 10**5, DRAWN)
THREAD_SHAPES = ((2048, 2048), (2, 2_000_000), (4_000_000,))


@dataclass(frozen=True)
class Point:
    """One measurement: what, against what, and how long."""

    study: str
    op: str
    dtype: str
    shape: str
    at: int
    ms: float
    noise: float | None


Step = tuple[str, Callable[[], Point | None]]


def _run_of(
    case: Case, operands: dict[str, np.ndarray], threads: int, checks: bool = True
) -> Callable[[], None]:
    outputs, plan = make_outputs(case), case.plan(threads)
    needed = plan.workspace_size
    space = np.empty(-(-needed // 8), np.int64) if needed else None

    def run() -> None:
        plan.run(**operands, **outputs, workspace=space)

    run()
    if checks and math.prod(case.shape) <= DRAWN:
        with np.errstate(all="ignore"):
            verdict = verify(case, operands, outputs)
        if not verdict.ok:
            raise AssertionError(f"{' '.join(case.key)}: {verdict.reason}")
    return run


def _repeated(case: Case, name: str, rng: np.random.Generator) -> np.ndarray:
    """Numbers drawn, and beyond ``DRAWN`` the drawn ones over and over."""
    shape = case.shape_of(name)
    if case.is_segmented or math.prod(shape) <= DRAWN:
        return ordinary(case, name, rng)
    return np.resize(ordinary(case.but(shape=(DRAWN,)), name, rng), shape)


def _size_case(op: Op, element: str, n: int) -> Case:
    rows = max(1, n // 64)
    shape = (rows, 64) if cuts(op) else (n,)
    return Case.of(op, element, shape, axis=-1, segments=max(1, rows // 26))


def _time(run: Callable[[], None], settings: Settings) -> Times:
    return interleave({"plan": run}, settings.rounds, settings.budget)["plan"]


def _point(study: str, case: Case, at: int, run: Callable[[], None], settings: Settings) -> Point:
    taken = _time(run, settings)
    name, element, shape, _ = case.key
    return Point(study, name, element, shape, at, taken.best * 1e3, taken.noise)


def _sizes(ops: Sequence[Op], element: str, largest: int, settings: Settings) -> Iterator[Step]:
    for op in ops:
        for power in range(3, round(math.log10(largest)) + 1):
            case = _size_case(op, element, 10**power)

            def measured(case: Case = case, n: int = 10**power) -> Point | None:
                if case.useful_bytes * 2 > available_memory():
                    return None
                run = _run_of(case, make_operands(case, draw=_repeated), settings.threads)
                return _point("size", case, n, run, settings)

            yield f"{op.name} n=1e{power}", measured


def _zeros(ops: Sequence[Op], element: str, settings: Settings) -> Iterator[Step]:
    for op in ops:
        case = Case.of(op, element, (DRAWN,), axis=-1)
        if not case.has_products:
            continue
        for count in ZEROS:

            def measured(case: Case = case, count: int = count) -> Point:
                def with_zeros(one: Case, name: str, rng: np.random.Generator) -> np.ndarray:
                    drawn = ordinary(one, name, rng)
                    if name not in one.cotangents:
                        drawn[rng.choice(DRAWN, count, replace=False)] = 0
                    return drawn

                operands = make_operands(case, draw=with_zeros)
                run = _run_of(case, operands, settings.threads, checks=not count)
                return _point("zeros", case, count, run, settings)

            yield f"{op.name} zeros={count}", measured


def _threads(ops: Sequence[Op], element: str, settings: Settings) -> Iterator[Step]:
    counts = sorted({*(2**k for k in range(8) if 2**k < usable_cores()), usable_cores()})
    for op in ops:
        shapes = [Case.of(op, element, shape, axis=-1) for shape in THREAD_SHAPES if not cuts(op)]
        if cuts(op):
            shapes = [_size_case(op, element, 4_000_000)]
        for case in shapes:
            for threads in counts:

                def measured(case: Case = case, threads: int = threads) -> Point:
                    run = _run_of(case, make_operands(case), threads)
                    return _point("threads", case, threads, run, settings)

                yield f"{op.name} threads={threads}", measured


def plan_steps(ops: Sequence[Op], element: str, largest: int, settings: Settings) -> list[Step]:
    """Every measurement of the study, to be called one after the other."""
    return [
        *_sizes(ops, element, largest, settings),
        *_zeros(ops, element, settings),
        *_threads(ops, element, settings),
    ]


def run_steps(
    steps: Sequence[Step], settings: Settings, progress: Callable[[str, bool], None] | None = None
) -> dict[str, Any]:
    """Measure; ``progress`` is told the name of each step before (False) and after it (True)."""
    points: list[Point] = []
    with thread_count(settings.threads, ()):
        for name, measured in steps:
            if progress:
                progress(name, False)
            point = measured()
            if point is not None:
                points.append(point)
            if progress:
                progress(name, True)
    return heading(settings) | {
        "points": [asdict(p) for p in points],
        "exponents": exponents(points),
    }


def fitted_exponent(pairs: Sequence[tuple[float, float]]) -> float | None:
    """The slope of log time against log size by least squares; None of fewer than two points."""
    if len(pairs) < 2:
        return None
    x, y = (np.log([p[k] for p in pairs]) for k in (0, 1))
    x = x - x.mean()
    return float((x @ (y - y.mean())) / (x @ x))


def exponents(points: Sequence[Point]) -> dict[str, dict[str, float | None]]:
    """Exponents of time against size (from ``FITTED`` elements on) and against zeros, by op."""
    found: dict[str, dict[str, float | None]] = {}
    for study, least in (("size", FITTED), ("zeros", 1)):
        by_op: dict[str, list[tuple[float, float]]] = {}
        for p in points:
            if p.study == study and p.at >= least:
                by_op.setdefault(p.op, []).append((p.at, p.ms))
        found[study] = {op: fitted_exponent(pairs) for op, pairs in by_op.items()}
    return found
