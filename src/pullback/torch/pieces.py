"""The functions of :mod:`pullback.cut` as ops of torch's library, for eager calls and for compile.

Operands have the op's axes last and as one. A problem travels as text, so that a graph which torch
keeps on disk needs nothing of the process that made it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
import torch
from torch import Tensor

from ..core.declare import Operand, Role, Type
from ..core.problem import Problem
from ..cut import Cut, Piece, SegmentCut
from ..cut.text import cut_of
from .arrays import ELEMENTS

_DTYPES = {name: dtype for dtype, name in ELEMENTS.items()}
_library = torch.library.Library("pullback", "FRAGMENT")


def _array(t: Tensor) -> np.ndarray[Any, Any]:
    if t.dtype is torch.bfloat16:
        found: np.ndarray[Any, Any] = t.contiguous().view(torch.int16).numpy()
        return found.view(ml_dtypes.bfloat16)
    return t.resolve_neg().numpy()


def _tensor(a: np.ndarray[Any, Any]) -> Tensor:
    packed = np.asarray(a, order="C")  # ascontiguousarray has no scalars
    if a.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(packed.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(packed)


def _piece(
    cut: Cut | SegmentCut, operands: Sequence[Tensor], before: Sequence[Tensor], start: int, n: int
) -> Piece:
    names = [o.name for o in cut.reads]
    held = dict(zip(names, map(_array, operands), strict=True))
    edges = {}
    if isinstance(cut, Cut):
        edges = dict(zip(cut.neighbours, map(_array, before), strict=False))
    return Piece(held, start, edges, n)


def _named_rows(cut: Cut | SegmentCut, rows: Sequence[Tensor]) -> dict[str, Any]:
    """The operands with one element for each row, by name."""
    names = [o.name for o in cut.reads if o.role is Role.ROW]
    return dict(zip(names, map(_array, rows), strict=True))


def _define(schema: str, run: Any, fake: Any) -> Any:
    name = schema.partition("(")[0]
    _library.define(schema, tags=(torch.Tag.pt2_compliant_tag,))
    _library.impl(name, run, "CPU")
    torch.library.register_fake(f"pullback::{name}", fake, lib=_library)
    return getattr(torch.ops.pullback, name).default


def _batch_of(cut: Cut, operands: Sequence[Tensor]) -> tuple[int, ...]:
    first = next(
        (k for k, o in enumerate(cut.reads) if o.role is Role.ELEMENT),
        None,
    )
    return tuple(operands[0].shape) if first is None else tuple(operands[first].shape[:-1])


def _states(
    operands: list[Tensor],
    before: list[Tensor],
    states: list[Tensor],
    own: list[Tensor],
    problem: str,
    sweep: int,
    start: int,
    length: int,
) -> Tensor:
    cut = cut_of(problem)
    assert isinstance(cut, Cut)
    piece = _piece(cut, operands, before, start, length)
    if sweep == 0:
        _check_rows(cut, piece)
    known = [_array(s) for s in states]
    return _tensor(cut.summary(sweep, piece, known, [_array(t) for t in own]))


def _fake_states(operands, before, states, own, problem, sweep, start, length):
    cut = cut_of(problem)
    assert isinstance(cut, Cut)
    size = len(cut.sweeps[sweep].monoid.state)
    shape = (*_batch_of(cut, operands), -(-length // cut.block), size)
    return operands[0].new_empty(shape, dtype=torch.float64)


def _joined(
    rows: list[Tensor], gathered: Tensor, problem: str, sweep: int, blocks: list[int], mine: int
) -> tuple[Tensor, Tensor]:
    cut = cut_of(problem)
    assert isinstance(cut, Cut)
    given = _named_rows(cut, rows)
    summaries = _array(gathered)
    state = cut.begin(sweep, summaries.shape[1:-2], given)
    here = state
    order = range(len(blocks))
    for k in order if cut.sweeps[sweep].forward else reversed(order):
        if k == mine:
            here = state
        if blocks[k]:
            state = cut.combine(sweep, state, summaries[k][..., : blocks[k], :])
    return _tensor(state if cut.sweeps[sweep].whole else here).clone(), _tensor(state)


def _fake_joined(rows, gathered, problem, sweep, blocks, mine):
    shape = (*gathered.shape[1:-2], gathered.shape[-1])
    return gathered.new_empty(shape), gathered.new_empty(shape)


def _check_rows(cut: Cut, piece: Piece) -> None:
    cut.check_rows({o.name: piece.operands[o.name] for o in cut.reads if o.role is Role.ROW})


def _dtype(problem: Problem, o: Operand) -> torch.dtype:
    return torch.float64 if o.type is Type.STATE else _DTYPES[problem.element]


def _applied(
    operands: list[Tensor],
    before: list[Tensor],
    states: list[Tensor],
    problem: str,
    start: int,
    length: int,
) -> list[Tensor]:
    cut = cut_of(problem)
    piece = _piece(cut, operands, before, start, length)
    known = [_array(s) for s in states]
    if isinstance(cut, SegmentCut):
        # Of segments, what is before a piece are the states of the first sweep.
        made = cut.apply(piece, known, _array(before[0]) if before else None)
    else:
        if not cut.sweeps:
            _check_rows(cut, piece)
        made = cut.apply(piece, known)
    return [_tensor(made[o.name]) for o in cut.problem.writes if o.role is Role.ELEMENT]


def _folded(
    operands: list[Tensor],
    before: list[Tensor],
    states: list[Tensor],
    carry: list[Tensor],
    problem: str,
    sweep: int,
    start: int,
    length: int,
) -> Tensor:
    cut = cut_of(problem)
    assert isinstance(cut, SegmentCut)
    piece = _piece(cut, operands, before, start, length)
    front = _array(before[0]) if before else None
    state = _array(carry[0]) if carry else cut.begin(sweep, cut.columns_of(piece))
    found = cut.fold(sweep, piece, [_array(s) for s in states], state, front)
    return _tensor(found.copy())


def _fake_folded(operands, before, states, carry, problem, sweep, start, length):
    cut = cut_of(problem)
    reads = cut.reads
    tables = (k for k, o in enumerate(reads) if o.role in (Role.ELEMENT, Role.ROW))
    columns = operands[next(tables)].shape[1]
    shape = (cut.problem.num_segments, columns, len(cut.sweeps[sweep].monoid.state))
    return operands[0].new_empty(shape, dtype=torch.float64)


def _fake_applied(operands, before, states, problem, start, length):
    cut = cut_of(problem)
    if isinstance(cut, SegmentCut):
        tables = (k for k, o in enumerate(cut.reads) if o.role in (Role.ELEMENT, Role.ROW))
        shape = (length, operands[next(tables)].shape[1])
    else:
        shape = (*_batch_of(cut, operands), length)
    return [
        operands[0].new_empty(shape, dtype=_dtype(cut.problem, o))
        for o in cut.problem.writes
        if o.role is Role.ELEMENT
    ]


def _finished(rows: list[Tensor], states: list[Tensor], problem: str) -> list[Tensor]:
    cut = cut_of(problem)
    given = _named_rows(cut, rows)
    made = cut.finish([_array(s) for s in states], given)
    return [
        _tensor(made[o.name]).to(_dtype(cut.problem, o))
        for o in cut.problem.writes
        if o.role is Role.ROW
    ]


def _fake_finished(rows, states, problem):
    cut = cut_of(problem)
    return [
        states[0].new_empty(states[0].shape[:-1], dtype=_dtype(cut.problem, o))
        for o in cut.problem.writes
        if o.role is Role.ROW
    ]


_PIECE = "Tensor[] operands, Tensor[] before, Tensor[] states"
states_of = _define(
    f"cut_states({_PIECE}, Tensor[] own, str problem, int sweep, int start, int length) -> Tensor",
    _states,
    _fake_states,
)
joined = _define(
    "cut_joined(Tensor[] rows, Tensor gathered, str problem, int sweep, int[] blocks, int mine)"
    " -> (Tensor, Tensor)",
    _joined,
    _fake_joined,
)
applied = _define(
    f"cut_applied({_PIECE}, str problem, int start, int length) -> Tensor[]",
    _applied,
    _fake_applied,
)
finished = _define(
    "cut_finished(Tensor[] rows, Tensor[] states, str problem) -> Tensor[]",
    _finished,
    _fake_finished,
)
folded = _define(
    "cut_folded(Tensor[] operands, Tensor[] before, Tensor[] states, Tensor[] carry, str problem, "
    "int sweep, int start, int length) -> Tensor",
    _folded,
    _fake_folded,
)
