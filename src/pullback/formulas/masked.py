"""A row formula over the elements that a mask lets in.

What the mask leaves out becomes the identity of every fold, whatever it holds, and gets a fixed
value where there is a result for it. The elements of a row are then those let in, so ``extent`` is
their number.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache

from .compose import asking, compose, renamed
from .folds import add
from .primitives import where
from .record import Formula, Monoid, Pass, RowFormula, ScanFormula, names_read, parameters

COUNT = "count_in"


def let_in(mask):
    return where(mask, 1.0, 0.0)


COUNT_PASS = Pass(Monoid(let_in, add, (0.0,), (COUNT,), sums=1))


@cache
def masked(record: RowFormula, outside: float = 0.0) -> RowFormula:
    """The record over the elements where ``mask`` holds; ``outside`` is the result elsewhere."""
    passes = tuple(_masked_pass(p) for p in record.passes)
    if "extent" in names_read(record):
        passes = (COUNT_PASS, *passes)
    return replace(
        record,
        passes=passes,
        finish=_counting(record.finish),
        apply=record.apply and _masked_values(record.apply, (outside,)),
        from_lifted=record.from_lifted and _masked_values(record.from_lifted, (outside,)),
        narrow=record.narrow and masked(record.narrow, outside),
        online=record.online and masked(record.online, outside),
        in_doubles=record.in_doubles and masked(record.in_doubles, outside),
        in_singles=tuple((element, masked(r, outside)) for element, r in record.in_singles),
        differentiable=record.differentiable and _masked_either(record.differentiable, outside),
        copies=False,
        counts=record.counts if outside == 0 else None,
        usual=None,
        seldom=None,
    )


def _masked_either(record: Formula, outside: float) -> Formula:
    """The record of rows or, with nothing in front of a row or behind it, of a scan."""
    if isinstance(record, RowFormula):
        return masked(record, outside)
    found: ScanFormula = replace(
        record,
        monoid=_masked_monoid(record.monoid),
        prefix=record.prefix and _masked_monoid(record.prefix),
        finish=_masked_values(record.finish, (outside,)),
    )
    return found


def _masked_monoid(monoid: Monoid) -> Monoid:
    way = monoid.stretch
    return replace(
        monoid,
        lift=_masked_values(monoid.lift, monoid.identity),
        stretch=way and replace(way, lift=_masked_values(way.lift, way.nothing)),
        away=None,
    )


def _masked_pass(step: Pass) -> Pass:
    monoid = step.monoid and _masked_monoid(step.monoid)
    again = step.again and replace(step.again, start=renamed(step.again.start, extent=COUNT))
    return replace(step, monoid=monoid, close=_counting(step.close), again=again)


def _counting(function: Callable | None) -> Callable | None:
    """The same function of a row that has as many elements as are let in."""
    return function and renamed(function, extent=COUNT)


def _masked_values(function: Callable, outside: Sequence[float]) -> Callable:
    """The same function where ``mask`` holds, and fixed values elsewhere."""
    function = renamed(function, extent=COUNT)
    name = function.__name__
    values = [f"value{k}" for k in range(len(outside))]
    others = {f"outside{k}": v for k, v in enumerate(outside)}
    chosen = [f"where(mask, {v}, {o})" for v, o in zip(values, others, strict=True)]
    lines = [
        f"{', '.join(values)} = {name}({', '.join(parameters(function))})",
        f"return {', '.join(chosen)}",
    ]
    made = {name: function, "where": where, **others}
    return compose(f"masked_{name}", asking(function, ["mask"]), lines, **made)
