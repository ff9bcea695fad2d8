"""Calls that must be refused, with nothing written."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

import pullback as pb
from fuzzing.calls import Memory, Wrong
from fuzzing.cases import Case
from fuzzing.memory import packed
from pullback.api.descriptors import parameters_of
from pullback.core import parse

Rng = np.random.Generator
ALLOWED = (pb.PullbackError, TypeError)


@dataclass
class Call:
    """A valid call, to be spoilt in one place. ``keep`` are arrays whose bytes must stay."""

    cell: Any
    operands: dict[str, Any]
    outputs: dict[str, Any]
    by_plan: bool
    more: dict[str, Any]
    rng: Rng

    def make(self) -> None:
        if self.by_plan:
            self.cell.plan().run(**self.operands, **self.outputs, **self.more)
            return
        outs = list(self.outputs.values())
        function = getattr(pb, self.cell.op.name)
        self.cell.call(self.operands, outs[0] if len(outs) == 1 else outs, function)

    def output(self) -> str:
        return str(self.rng.choice(list(self.outputs)))

    def operand(self, also_optional: bool = True) -> str:
        cutting = ("segment_ids", "offsets")
        left_out = cutting if also_optional else (*cutting, *self.cell.op.optional)
        return str(self.rng.choice([n for n in self.operands if n not in left_out]))


# Each spoils a call and says how, or says nothing where it does not apply.
Spoil = Callable[[Call, Memory], str | None]


def other_dtype(rng: Rng, dtype: Any) -> Any:
    names = ["i4", "i8", "c8", "?", "f4", "f8", "f2", ">f4", "g"]
    return np.dtype(str(rng.choice([n for n in names if np.dtype(n) != dtype])))


def out_of_another_dtype(call: Call, memory: Memory) -> str:
    name = call.output()
    dtype = other_dtype(call.rng, call.cell.dtype)
    shape = call.outputs[name].shape
    call.outputs[name] = memory.arena("bad").place(shape, dtype, packed(shape)).array
    return f"{name} of dtype {dtype}"


def out_of_another_shape(call: Call, memory: Memory) -> str:
    name = call.output()
    shape = list(call.outputs[name].shape)
    if shape and call.rng.random() < 0.7:
        shape[int(call.rng.integers(len(shape)))] += int(call.rng.choice([1, 2]))
    else:
        shape.append(2)
    where = memory.arena("bad").place(tuple(shape), call.cell.dtype, packed(tuple(shape)))
    call.outputs[name] = where.array
    return f"{name} of shape {shape}"


def out_read_only(call: Call, memory: Memory) -> str:
    name = call.output()
    call.outputs[name] = call.outputs[name].view()
    call.outputs[name].flags.writeable = False
    return f"{name} read-only"


def out_repeated(call: Call, memory: Memory) -> str | None:
    name = call.output()
    out = call.outputs[name]
    long = [a for a, n in enumerate(out.shape) if n > 1]
    if not long:
        return None
    strides = list(out.strides)
    strides[int(call.rng.choice(long))] = 0
    call.outputs[name] = np.lib.stride_tricks.as_strided(out, strides=strides)
    return f"{name} with strides {strides}"


def out_misaligned(call: Call, memory: Memory) -> str:
    name = call.output()
    shape, dtype = call.outputs[name].shape, call.cell.dtype
    raw = memory.arena("bad").flat(int(np.prod(shape)) * dtype.itemsize + dtype.itemsize)
    call.outputs[name] = np.ndarray(shape, dtype, raw, offset=1)
    return f"{name} at an odd address"


def out_over_an_operand(call: Call, memory: Memory) -> str | None:
    """Shifted by one element, so that it is not in place."""
    name, other = call.output(), call.operand()
    shape = call.cell.shape_of(name)
    if shape != call.cell.shape_of(other) or int(np.prod(shape)) < 2:
        return None
    size = int(np.prod(shape))
    both = memory.arena("bad").place((size + 1,), call.cell.dtype, packed((size + 1,))).array
    both[:-1] = call.operands[other].reshape(-1)
    call.operands[other] = both[:-1].reshape(shape)
    call.outputs[name] = both[1:].reshape(shape)
    return f"{name} one element behind {other}"


def out_no_array(call: Call, memory: Memory) -> str:
    name = call.output()
    call.outputs[name] = [[1.0], "text", 3.0, b"1234567890", object()][int(call.rng.integers(5))]
    return f"{name} of type {type(call.outputs[name]).__name__}"


def operand_of_another_dtype(call: Call, memory: Memory) -> str | None:
    name = call.operand()
    dtype = other_dtype(call.rng, call.cell.dtype)
    # The first operand of a function sets the dtype, and the output would be at fault.
    with np.errstate(all="ignore"):
        call.operands[name] = call.operands[name].astype(np.float64).astype(dtype)
    return f"{name} of dtype {dtype}"


def operand_of_another_shape(call: Call, memory: Memory) -> str:
    name = call.operand()
    call.operands[name] = np.zeros((*call.operands[name].shape, 2), call.cell.dtype)
    return f"{name} with a dimension more"


def operand_no_array(call: Call, memory: Memory) -> str:
    # Nothing, or a number, may stand for an optional one.
    name = call.operand(also_optional=False)
    call.operands[name] = [None, [1.0], "text", 2.0, object()][int(call.rng.integers(5))]
    return f"{name} of type {type(call.operands[name]).__name__}"


def bad_axis(call: Call, memory: Memory) -> str | None:
    if call.cell.op.parameter("axis") is None:
        return None
    rank = max(len(call.cell.shape), 1)
    bad = [rank, -rank - 1, 1 << 70, "x", 0.5, [0.5], (0, rank), object()]
    if call.cell.op.parameter("axis").parse is parse.axes and call.cell.shape:
        bad.append((0, 0))
    axis = bad[int(call.rng.integers(len(bad)))]
    call.cell = call.cell.but(axis=axis)
    return f"axis={axis!r}"


def bad_ties(call: Call, memory: Memory) -> str | None:
    if not call.cell.op.ties:
        return None
    ties = ["frist", 3, 1.5, b"first"][int(call.rng.integers(4))]
    call.cell = call.cell.but(ties=ties)
    return f"ties={ties!r}"


def bad_parameter(call: Call, memory: Memory) -> str | None:
    bad: dict[Any, object] = {parse.real: [1.0, 2.0], parse.correction: "many", parse.flag: 2}
    bad[parse.out_of_range] = ["clip", 2, 1.5][int(call.rng.integers(3))]
    op = call.cell.op
    taken = parameters_of(op) if call.by_plan else [p.name for p in op.parameters]
    names = {*taken} - {"sorted", *call.cell.given}
    found = [p for p in op.parameters if p.parse in bad and p.name in names]
    if not found:
        return None
    p = found[int(call.rng.integers(len(found)))]
    call.cell = call.cell.but(**{p.name: bad[p.parse]})
    return f"{p.name}={bad[p.parse]!r}"


def bad_ids(call: Call, memory: Memory) -> str | None:
    if "segment_ids" not in call.operands or not call.cell.shape[0]:
        return None
    ids, segments = call.operands["segment_ids"], call.cell.segments
    last = len(ids) - 1
    how = int(call.rng.integers(5))
    if how == 0:
        call.operands["segment_ids"] = ids.astype(np.float32)
    elif how == 1:
        call.operands["segment_ids"] = ids[:, None]
    elif how == 2:
        call.operands["segment_ids"] = np.append(ids, ids[-1:])
    else:
        call.cell = call.cell.but(out_of_range="raise")
        at = int(call.rng.integers(last + 1))
        inside = np.clip(ids, 0, segments - 1)
        inside[at] = [-1, segments, np.iinfo(ids.dtype).max][int(call.rng.integers(3))]
        call.operands["segment_ids"] = inside
        return f"an id of {inside[at]} at {at}"
    return f"ids of shape {call.operands['segment_ids'].shape}, {ids.dtype}, way {how}"


def bad_offsets(call: Call, memory: Memory) -> str | None:
    if "offsets" not in call.operands:
        return None
    offsets = call.operands["offsets"].copy()
    how = int(call.rng.integers(5))
    if how == 0:
        offsets = offsets.astype(np.float32)
    elif how == 1:
        offsets = offsets[:, None]
    elif how == 2:
        offsets[0] = -1
    elif how == 3:
        offsets[-1] += 1
    else:
        offsets[-2:] = offsets[-1] + 1, offsets[-1]
    call.operands["offsets"] = offsets
    return f"offsets of shape {offsets.shape}, {offsets.dtype}, way {how}"


def short_workspace(call: Call, memory: Memory) -> str | None:
    if call.cell.is_segmented and len(call.cell.shape) != 2:
        return None
    needed = call.cell.plan().runnable(call.cell.given).workspace_size
    if not needed:
        return None
    call.by_plan = True
    call.more = {"workspace": memory.arena("workspace").flat(needed - 1)}
    return f"a workspace of {needed - 1} bytes instead of {needed}"


SPOILS: tuple[Spoil, ...] = (
    out_of_another_dtype,
    out_of_another_shape,
    out_read_only,
    out_repeated,
    out_misaligned,
    out_over_an_operand,
    out_no_array,
    operand_of_another_dtype,
    operand_of_another_shape,
    operand_no_array,
    bad_axis,
    bad_ties,
    bad_parameter,
    bad_ids,
    bad_offsets,
    short_workspace,
)


def suits(case: Case) -> bool:
    """Small cases with something to write; of no elements most is allowed."""
    cell = case.cell
    sizes = [int(np.prod(cell.shape_of(n))) for n in (*cell.reads, *cell.outputs)]
    return min(sizes) > 0 and max(sizes) <= 5000 and case.form in ("function", "plan")


def run(case: Case, memory: Memory) -> str | None:
    """Spoil a valid call; raise :class:`Wrong` unless it is refused and nothing was written."""
    rng = np.random.default_rng(case.hostile)
    inputs, outputs = memory.place(replace(case, in_place=None))
    call = Call(
        case.cell,
        {n: p.array for n, p in inputs.items()},
        {n: p.array for n, p in outputs.items()},
        case.form == "plan",
        {},
        rng,
    )
    spoil = SPOILS[int(rng.integers(len(SPOILS)))]
    how = spoil(call, memory)
    if how is None:
        return None
    arrays = [a for a in (*call.operands.values(), *call.outputs.values())
              if isinstance(a, np.ndarray)]  # fmt: skip
    before = [a.tobytes() for a in arrays]
    try:
        call.make()
    except ALLOWED:
        pass
    except Exception as error:
        raise Wrong(f"{how}: raised {type(error).__name__}: {error}") from error
    else:
        raise Wrong(f"{how}: was accepted")
    if [a.tobytes() for a in arrays] != before:
        raise Wrong(f"{how}: refused, and yet something was written")
    if any(not p.is_unchanged() for p in (*inputs.values(), *outputs.values())):
        raise Wrong(f"{how}: refused, and yet something was written around the operands")
    return how
