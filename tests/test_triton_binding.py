"""No formula is written twice: both compilers get the same code objects."""

from __future__ import annotations

import types
from collections.abc import Iterator

import pytest

from cells import OPS
from pullback.core.declare import Role
from pullback.cpu.codegen.elementary import primitives_for
from pullback.cpu.codegen.lanes import traced
from pullback.formulas import primitives
from pullback.formulas.bind import primitives_of
from pullback.formulas.record import RowFormula, functions_of, names_read, parameters
from pullback.tools.case import Case, cuts

pytest.importorskip("triton")

from pullback.formulas.record import in_singles
from pullback.gpu.bind import bind
from pullback.gpu.primitives import PRIMITIVES
from triton_cells import launch, launch_of


def records() -> Iterator[tuple[str, tuple]]:
    """Every record of every op, once; rows are cut by one operand or none."""
    for name, op in OPS.items():
        seen = []
        for selection in op.selections():
            chosen = dict(zip(op.selectors, selection, strict=True))
            cutting = [o.name for o in op.reads if o.role in (Role.IDS, Role.OFFSETS)]
            wanted = 1 if cuts(op) else 0
            if cutting and sum(chosen.get(n, True) for n in cutting) != wanted:
                continue
            if any(not chosen[n] and n in names_read(op.record(selection)) for n in op.optional):
                continue
            if (simplest := op.simplest(selection)) not in seen:
                seen.append(simplest)
                yield name, simplest


RECORDS = list(records())


def codes(function) -> dict[str, types.CodeType]:
    """Code of a function and of the formula functions it calls, by where they stand."""
    found = {f"{function.__module__}.{function.__qualname__}": function.__code__}
    for name in function.__code__.co_names:
        called = function.__globals__.get(name)
        if isinstance(called, types.FunctionType) and name not in primitives.PRIMITIVES:
            found |= codes(called)
    return found


def kernels(name: str, selection: tuple) -> list:
    op = OPS[name]
    chosen = dict(zip(op.selectors, selection, strict=True))
    given = tuple(n for n in op.optional if chosen[n])
    parameters = {n: v for n, v in chosen.items() if n not in op.optional}
    shape = (65536, 256) if cuts(op) else (4096, 1024)
    case = Case.of(op, "f32", shape, given, axis=1, **parameters)
    return [s.kernel for s in launch(case.problem).steps]


FORMULAS = "pullback.formulas"


@pytest.mark.parametrize(("name", "selection"), RECORDS)
def test_both_compilers_bind_the_same_functions(name, selection):
    for function in functions_of(OPS[name].record(selection)):
        assert bind(function).fn.__code__ is function.__code__
        assert traced(function, primitives_for("f32")).__code__ is function.__code__


@pytest.mark.parametrize(("name", "selection"), RECORDS)
def test_kernels_call_nothing_but_the_record_and_the_primitives(name, selection):
    """The globals of a generated kernel lead to the record's code, and to no other formula."""
    wanted: dict[str, types.CodeType] = {}
    record = OPS[name].record(selection, "f32")
    record = in_singles(record, "f32") or record
    for function in functions_of(record):
        wanted |= codes(function)
    own = {id(p) for p in PRIMITIVES.values()}
    reached: dict[str, types.CodeType] = {}

    def follow(function) -> None:
        for value in function.__globals__.values():
            code = getattr(getattr(value, "fn", None), "__code__", None)
            if code is None or id(value) in own or not value.fn.__module__.startswith(FORMULAS):
                continue
            reached[f"{value.fn.__module__}.{value.fn.__qualname__}"] = code
            follow(value.fn)

    for kernel in kernels(name, selection):
        if "kernels" in kernel.fn.__module__:
            follow(kernel.fn)
    assert set(reached) <= set(wanted)
    for where, code in reached.items():
        assert code is wanted[where]
    # What only moves bits calls nothing.
    assert reached or (isinstance(record, RowFormula) and record.copies)


def test_every_primitive_has_a_triton_version():
    assert set(PRIMITIVES) == set(primitives.PRIMITIVES)
    used = {
        p
        for name, selection in RECORDS
        for f in functions_of(OPS[name].record(selection))
        for p in primitives_of(f)
    }
    assert used <= set(PRIMITIVES)


def test_an_unknown_name_is_refused():
    from dataclasses import replace

    from pullback.formulas.record import RowFormula
    from pullback.gpu.rows import make_rows_kernel

    def apply(nobody_gives_this):
        return nobody_gives_this

    shape = replace(launch_of("sum_backward", "f32").shape)
    with pytest.raises(TypeError, match="nobody_gives_this"):
        make_rows_kernel("wrong", RowFormula(apply=apply), shape, ("chunk", "chunks"), "end", False)
    assert parameters(apply) == ("nobody_gives_this",)
