"""Wrong calls: the right class, a message that names the operand, and nothing written."""

from __future__ import annotations

import inspect
import re
from itertools import product
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import pullback as pb
from cells import (
    DTYPES,
    ELEMENTS,
    OPS,
    Fenced,
    arrays_of,
    lies_anyhow,
    outputs_for,
    same_bytes,
)
from grid import default, has_axes, has_axis, is_segmented
from pullback.core.declare import Role, Type
from pullback.tools.case import Case, function_of
from quick_data import quick_operands

BUILTIN = {
    pb.UnsupportedError: NotImplementedError,
    pb.InvalidProblemError: ValueError,
    pb.BufferTooSmallError: ValueError,
    pb.MisalignedOperandError: ValueError,
    pb.WorkspaceTooSmallError: ValueError,
}
SHAPE = (4, 6)


class Call:
    """A valid call of an op, to be spoilt in one place and then refused."""

    def __init__(self, op: pb.Op, element: str = "f32", case: Case | None = None):
        self.case = case or default(op, element, SHAPE)
        self.operands: dict[str, Any] = quick_operands(self.case)
        self.fenced = outputs_for(self.case)
        self.outputs: dict[str, Any] = arrays_of(self.fenced)

    def inputs(self) -> list[str]:
        """Operands that are neither ids nor offsets."""
        return [n for n in self.operands if lies_anyhow(self.case, n)]

    def typed(self) -> list[str]:
        """Operands and outputs that must have the element type."""
        names = (*self.inputs(), *self.outputs)
        return [n for n in names if self.case.op.operand(n).type is Type.ELEMENT]

    def call(self) -> Any:
        outs = [self.outputs.get(n) for n in self.case.outputs]
        return self.case.call(self.operands, outs if len(outs) > 1 else outs[0])

    def refused(self, error: type, *words: str, workspace: Any = None, functions=True) -> None:
        """The plan's check, its run and the function refuse alike; outputs keep their poison."""
        plan = self.case.plan()
        messages = []
        if workspace is None:
            with pytest.raises(error) as caught:
                plan.can_implement(**self.operands, **self.outputs)
            messages.append(check_message(caught, error, words))
        with pytest.raises(error) as caught:
            plan.run(**self.operands, **self.outputs, workspace=workspace)
        messages.append(check_message(caught, error, words))
        assert len(set(messages)) == 1, f"can_implement and run disagree: {messages}"
        if functions:
            with pytest.raises(error) as caught:
                self.call()
            # The function calls its output "out".
            name = "out" if words[0] in self.outputs else words[0]
            assert re.match(rf"{name}\b", str(caught.value)), str(caught.value)
            check_class(caught, error)
        for name, fenced in self.fenced.items():
            assert fenced.is_untouched(), f"{name} was written by a call that raised"


def check_class(caught: pytest.ExceptionInfo, error: type) -> None:
    assert type(caught.value) is error
    assert isinstance(caught.value, pb.PullbackError)
    assert isinstance(caught.value, BUILTIN[error])


def check_message(caught: pytest.ExceptionInfo, error: type, words: tuple[str, ...]) -> str:
    """The message begins with the operand and holds what was expected and what came."""
    check_class(caught, error)
    message = str(caught.value)
    assert message.startswith(words[0]), message
    for word in words[1:]:
        assert word in message, f"{word!r} not in {message!r}"
    return message


every_op = pytest.mark.parametrize("op", OPS.values(), ids=OPS)


@every_op
def test_wrong_shape(op):
    for name in Call(op).inputs():
        call = Call(op)
        expected = call.case.shape_of(name)
        wrong = (*expected[:-1], expected[-1] + 2)
        call.operands[name] = np.zeros(wrong, call.case.dtype_of(name))
        # A function takes its shape from the first operand, so another one is then at fault.
        call.refused(pb.InvalidProblemError, name, str(expected), str(wrong), functions=False)
    for name in Call(op).outputs:
        call = Call(op)
        expected = call.case.shape_of(name)
        wrong = (*expected[:-1], expected[-1] + 2)
        call.fenced[name] = Fenced(wrong, call.case.dtype_of(name))
        call.outputs[name] = call.fenced[name].array
        call.refused(pb.InvalidProblemError, name, str(expected), str(wrong))


@every_op
def test_second_operand_of_another_shape(op):
    """In a function the first operand sets the shape and the others must follow."""
    names = Call(op).inputs()[1:]
    for name in names:
        call = Call(op)
        expected = call.case.shape_of(name)
        wrong = (expected[0] + 1, *expected[1:])
        call.operands[name] = np.zeros(wrong, call.case.dtype_of(name))
        with pytest.raises(pb.InvalidProblemError, match=r"^\w+: expected shape"):
            call.call()


@every_op
def test_wrong_rank(op):
    call = Call(op)
    name = op.outputs[0]
    expected = call.case.shape_of(name)
    call.outputs[name] = call.outputs[name].reshape(1, *expected)
    call.refused(pb.InvalidProblemError, name, str(expected), str((1, *expected)))


@every_op
@pytest.mark.parametrize("other", ELEMENTS)
def test_operand_of_another_dtype(op, other):
    element = "f64" if other == "f32" else "f32"
    for name in Call(op).typed():
        call = Call(op, element)
        wrong = Fenced(call.case.shape_of(name), DTYPES[other])
        if name in op.outputs:
            call.fenced[name] = wrong
            call.outputs[name] = wrong.array
        else:
            call.operands[name] = np.zeros(wrong.array.shape, DTYPES[other])
        # A function takes the element type from its first operand; another one is then at fault.
        first = next(iter(inspect.signature(function_of(op)).parameters))
        call.refused(pb.InvalidProblemError, name, element, other, functions=name != first)


@every_op
@pytest.mark.parametrize("dtype", ["i4", "c8", "?", "u1", ml_dtypes.float8_e5m2, "O", ">f4"])
def test_unsupported_dtype(op, dtype):
    for name in Call(op).typed():
        if name in op.outputs:
            continue
        call = Call(op)
        wrong = np.zeros(call.case.shape_of(name), dtype)
        call.operands[name] = wrong
        shown = "i32" if dtype == "i4" else wrong.dtype.newbyteorder("=").name
        call.refused(pb.UnsupportedError, name, shown)


@pytest.mark.parametrize("element", ["f8", "int32", "complex64", np.int32, "float", None, 3])
def test_unsupported_element(element):
    with pytest.raises(pb.UnsupportedError) as caught:
        pb.ScanDescriptor("cumsum", (3,), element=element)
    check_message(caught, pb.UnsupportedError, ("element", "f32, f64, f16, bf16", repr(element)))


@every_op
def test_missing_operand(op):
    for name in [*Call(op).operands, *op.outputs]:
        call = Call(op)
        if name in (op.outputs if len(op.outputs) > 1 else op.needs - call.case.plan().reads):
            continue  # any of several outputs may be left out, and so may a save that is not read
        if name in op.outputs:
            call.outputs[name] = None
        else:
            call.operands[name] = None
        call.refused(pb.InvalidProblemError, name, "required", "got None", functions=False)


@every_op
def test_saves_that_are_read_cannot_be_left_out(op):
    plan = Call(op).case.plan()
    assert plan.needs == op.needs
    assert bool(plan.needs) <= (op.direction == "backward")
    for name in Call(op).operands:
        call = Call(op)
        call.operands.pop(name)
        if name in op.needs - plan.reads:
            plan.run(**call.operands, **call.outputs)
        else:
            call.refused(pb.InvalidProblemError, name, op.name, "None", functions=False)


SPARING = [op for op in pb.catalog() if op.spared]


def test_which_saves_are_not_read():
    """Asked of the records, none of which names them."""
    assert {op.name: op.spared for op in SPARING} == {
        "cumprod_backward": ("y",),
        "prod_backward": ("y",),
        "segment_prod_backward": ("output",),
    }


@pytest.mark.parametrize("op", SPARING, ids=lambda op: op.name)
def test_functions_do_not_ask_for_saves_that_are_not_read(op):
    call = Call(op)
    (name,) = op.spared
    expected = call.case.call(call.operands)
    for absent in ({}, {name: None}):
        less = {n: a for n, a in call.operands.items() if n != name} | absent
        for _ in range(2):  # the second call goes the short way
            assert same_bytes(call.case.call(less), expected)
    call.operands[name] = np.zeros((9, 9), call.case.dtype)
    with pytest.raises(pb.InvalidProblemError, match=f"^{name}: expected shape"):
        call.call()


@every_op
def test_read_only_output(op):
    for name in Call(op).outputs:
        call = Call(op)
        call.outputs[name].flags.writeable = False
        call.refused(pb.InvalidProblemError, name, "writable", "read-only")


@every_op
def test_self_overlapping_output(op):
    """Broadcast, and overlapping by strides that are not zero."""
    for name, strides in product(Call(op).outputs, ((0, 4), (4, 4))):
        case = default(op, "f32", (3, 5)).but(segments=3)
        if case.role(name) is Role.ROW and not is_segmented(op):
            case = case.but(shape=(3, 5, 2))
        call = Call(op, case=case)
        shape, item = case.shape_of(name), call.outputs[name].itemsize // 4
        steps = tuple(s * item for s in (*strides, 4)[: len(shape)])
        tangled = np.lib.stride_tricks.as_strided(call.outputs[name], shape, steps, writeable=True)
        call.outputs[name] = tangled
        call.refused(pb.InvalidProblemError, name, "overlapping", str(tangled.strides), str(shape))


@every_op
def test_output_over_part_of_an_input(op):
    """One element further, the same memory reversed, and rows that interleave."""
    for name, out in product(Call(op).inputs(), Call(op).outputs):
        if Call(op).case.dtype_of(name) == Call(op).case.dtype_of(out) == np.float32:
            call = Call(op)
            shape = call.case.shape_of(out)
            held = Fenced((64,), call.case.dtype, values=np.linspace(0.5, 1.5, 64))
            before = held.bytes.copy()
            source = call.case.shape_of(name)
            count = int(np.prod(source))
            call.operands[name] = held.array[:count].reshape(source)
            size = int(np.prod(shape))
            for start in (count - 1, 1):
                call.outputs[out] = held.array[start : start + size].reshape(shape)
                call.refused(pb.InvalidProblemError, out, name, "overlap")
                assert np.array_equal(held.bytes, before)
            if shape == source and count > 1:
                call.outputs[out] = call.operands[name][::-1, ::-1]
                call.refused(pb.InvalidProblemError, out, name, "overlap")
                assert np.array_equal(held.bytes, before)


def test_outputs_may_not_overlap_each_other():
    call = Call(OPS["lerp_backward"])
    call.outputs["db"] = call.outputs["da"]
    with pytest.raises(pb.InvalidProblemError, match=r"^(da|db): .*overlaps"):
        call.case.run(call.operands, call.outputs)
    assert call.fenced["da"].is_untouched()


@every_op
def test_misaligned_address(op):
    for name in [*Call(op).inputs(), *Call(op).outputs]:
        call = Call(op)
        shape = call.case.shape_of(name)
        dtype = call.case.dtype_of(name)
        if dtype.itemsize == 1:
            continue
        raw = np.full(int(np.prod(shape)) * dtype.itemsize + 8, 0xFF, np.uint8)
        odd = np.ndarray(shape, dtype, raw, 1)
        if name in op.outputs:
            call.outputs[name] = odd
        else:
            call.operands[name] = odd
        call.refused(pb.MisalignedOperandError, name, str(dtype.itemsize), hex(odd.ctypes.data))
        assert (raw == 0xFF).all()


@every_op
def test_tensor_ref_outside_its_buffer(op):
    for name in [*Call(op).inputs(), *Call(op).outputs]:
        call = Call(op)
        shape = call.case.shape_of(name)
        count = int(np.prod(shape))
        held = Fenced((count + 1,), call.case.dtype_of(name))
        for offset in (2, -1):
            ref = pb.TensorRef(held.array, shape, offset=offset)
            (call.outputs if name in op.outputs else call.operands)[name] = ref
            with pytest.raises(pb.BufferTooSmallError) as caught:
                call.case.plan().run(**call.operands, **call.outputs)
            words = (name, f"needs {count + 2}", f"got {count + 1}")
            check_message(caught, pb.BufferTooSmallError, words)
            assert (caught.value.needed, caught.value.got) == (count + 2, count + 1)
            with pytest.raises(pb.BufferTooSmallError):
                call.case.plan().can_implement(**call.operands, **call.outputs)
            assert held.is_untouched()
        assert all(f.is_untouched() for f in call.fenced.values())


@every_op
def test_tensor_ref_stands_for_an_array(op):
    """Every operand as a reference into a flat buffer gives what arrays give."""
    call = Call(op)
    call.case.run(call.operands, call.outputs)
    flat: dict[str, pb.TensorRef] = {}
    for name, array in call.operands.items():
        buffer = np.zeros(array.size + 5, array.dtype)
        buffer[3 : 3 + array.size] = array.ravel()
        flat[name] = pb.TensorRef(buffer, array.shape, offset=3)
    buffers = {n: Fenced((2 * a.size + 7,), a.dtype) for n, a in call.outputs.items()}
    refs = {}
    for name, array in call.outputs.items():
        steps = tuple(2 * s // array.itemsize for s in np.empty(array.shape, array.dtype).strides)
        refs[name] = pb.TensorRef(buffers[name].array, array.shape, steps, 5)
    call.case.run(flat, refs)
    for name, array in call.outputs.items():
        written = buffers[name].array[5 : 5 + 2 * array.size : 2]
        assert written.tobytes() == array.tobytes()
        untouched = np.delete(buffers[name].array, np.s_[5 : 5 + 2 * array.size : 2])
        assert np.isnan(untouched.astype(float)).all()


@pytest.mark.parametrize(
    ("name", "element"),
    [("cumprod_backward", "f32"), ("prod_backward", "f64"), ("segment_sum", "f32")],
)
def test_workspace_too_small(name, element):
    call = Call(OPS[name], case=default(OPS[name], element, (3, 2000)))
    needed = call.case.plan().workspace_size
    assert needed > 0
    for got in (needed - 1, 1, 0):
        space = np.zeros(got, np.uint8)
        call.refused(
            pb.WorkspaceTooSmallError, "workspace", str(needed), str(got), workspace=space,
            functions=False,
        )  # fmt: skip
        with pytest.raises(pb.WorkspaceTooSmallError) as caught:
            call.case.run(call.operands, call.outputs, workspace=space)
        assert (caught.value.needed, caught.value.got) == (needed, got)


def test_workspace_must_be_aligned_and_writable():
    call = Call(OPS["segment_sum"])
    needed = call.case.plan().workspace_size
    raw = np.zeros(needed + 16, np.uint8)
    offset = 1 + -raw.ctypes.data % 8
    call.refused(
        pb.MisalignedOperandError, "workspace", "8", workspace=raw[offset:], functions=False
    )
    call.refused(
        pb.InvalidProblemError, "workspace", "writable", workspace=bytes(needed), functions=False
    )


AXIAL = [op for op in OPS.values() if has_axis(op)]


@pytest.mark.parametrize("op", AXIAL, ids=lambda op: op.name)
def test_axis_out_of_range(op):
    for axis in (2, -3):
        case = default(op, "f32", SHAPE).but(axis=axis)
        with pytest.raises(pb.InvalidProblemError) as caught:
            case.plan()
        words = ("axis", "[-2, 1]", str(axis))
        check_message(caught, pb.InvalidProblemError, words)
        call = Call(op)
        call.case = call.case.but(axis=axis)
        with pytest.raises(pb.InvalidProblemError, match=rf"^axis: .*\[-2, 1\].*{axis}"):
            call.call()
        assert all(f.is_untouched() for f in call.fenced.values())


@pytest.mark.parametrize("op", [o for o in AXIAL if has_axes(o)], ids=lambda op: op.name)
def test_repeated_axis(op):
    with pytest.raises(pb.InvalidProblemError, match=r"^axis: expected distinct.*\(0, -2\)"):
        default(op, "f32", SHAPE).but(axis=(0, -2)).plan()


DESCRIBED = [
    (lambda shape, axis=0: pb.ScanDescriptor("cumsum", shape, axis), "input_shape", "scan_axis"),
    (lambda shape, axis=0: pb.ReduceDescriptor("sum", shape, axis), "input_shape", "reduce_axis"),
    (
        lambda shape, axis=0: pb.SoftmaxDescriptor("softmax", shape, axis),
        "input_shape",
        "softmax_axis",
    ),
    (lambda shape: pb.BinaryParamDescriptor("lerp", shape, "f32", 0.5), "shape", ""),
    (lambda shape: pb.SegmentSumDescriptor(*shape, 3), "embedding_dim", ""),
]


@pytest.mark.parametrize(("make", "field", "axis"), DESCRIBED)
def test_descriptors_name_their_fields(make, field, axis):
    with pytest.raises(pb.InvalidProblemError) as caught:
        make((4, -1))
    check_message(caught, pb.InvalidProblemError, (field, "non-negative", "-1"))
    if axis:
        with pytest.raises(pb.InvalidProblemError) as caught:
            make((4, 6), 2)
        check_message(caught, pb.InvalidProblemError, (axis, "[-2, 1]", "2"))


def test_unknown_kind():
    makers = [pb.ScanDescriptor, pb.ReduceBackwardDescriptor, pb.SoftmaxDescriptor]
    for make in makers:
        with pytest.raises(pb.UnsupportedError) as caught:
            make("cumsun", (3,))
        check_message(caught, pb.UnsupportedError, ("kind", "expected one of", "'cumsun'"))
    with pytest.raises(pb.UnsupportedError, match=r"^kind: .*'sum'"):
        pb.ScanDescriptor("sum", (3,))
    with pytest.raises(pb.UnsupportedError, match=r"^kind: .*'mix'"):
        pb.BinaryParamDescriptor("mix", (3,), "f32", 0.5)
    with pytest.raises(pb.UnsupportedError, match=r"^backend: .*'cuda'"):
        pb.PlanPreference(backend="cuda")


@pytest.mark.parametrize("op", [o for o in OPS.values() if o.ties], ids=lambda op: op.name)
def test_unknown_ties(op):
    call = Call(op)
    call.case = call.case.but(ties="random")
    with pytest.raises(pb.UnsupportedError, match=r"^ties: expected one of .*'random'"):
        call.case.plan()
    with pytest.raises(pb.UnsupportedError, match=r"^ties: "):
        call.call()
    assert all(f.is_untouched() for f in call.fenced.values())


@pytest.mark.parametrize("kind", ["max", "min"])
def test_extreme_of_nothing(kind):
    for shape, axis in (((0,), 0), ((3, 0), 1), ((3, 0, 2), (0, 1)), ((0,), None)):
        case = default(OPS[kind], "f32").but(shape=shape, axis=axis)
        with pytest.raises(pb.InvalidProblemError) as caught:
            case.plan()
        check_message(caught, pb.InvalidProblemError, ("x", "at least one element", str(shape)))
        with pytest.raises(pb.InvalidProblemError, match=r"^x: "):
            case.call({"x": np.zeros(shape, "f4")})


@pytest.mark.parametrize("wrong", [-1, 4, 2**31, -(2**40)])
@pytest.mark.parametrize("is_sorted", [False, True])
@pytest.mark.parametrize("name", ["segment_sum", "segment_sum_backward"])
def test_id_out_of_range(name, is_sorted, wrong):
    ids = np.array([0, 0, 1, 3, 3, 3])
    ids[-1 if wrong > 0 else 0] = wrong
    for dtype in ("i8", "i4"):
        if dtype == "i4" and abs(wrong) >= 2**31:
            continue
        case = default(OPS[name], "f32", (6, 6)).but(is_sorted=is_sorted)
        call = Call(OPS[name], case=case)
        call.operands["segment_ids"] = ids.astype(dtype)
        row = 5 if wrong > 0 else 0
        call.refused(pb.InvalidProblemError, "segment_ids", "[0, 4)", str(wrong), f"row {row}")


def test_ids_of_a_sorted_plan_must_ascend():
    call = Call(OPS["segment_sum"])
    call.case = call.case.but(is_sorted=True)
    call.operands["segment_ids"] = np.array([0, 2, 1, 3])
    call.refused(pb.InvalidProblemError, "segment_ids", "ascending", "1", "2", "row 2")


@pytest.mark.parametrize("policy", ["raise", "drop"])
def test_dropping_does_not_excuse_disorder(policy):
    call = Call(OPS["segment_sum"])
    call.case = call.case.but(is_sorted=True, out_of_range=policy)
    call.operands["segment_ids"] = np.array([0, 3, 2, 3], np.int32)
    call.refused(pb.InvalidProblemError, "segment_ids", "ascending", "row 2")


@pytest.mark.parametrize("name", ["segment_sum", "segment_sum_backward"])
def test_ids_must_be_integers_in_one_dimension(name):
    for ids in (np.zeros(4, "f4"), np.zeros((4, 1), "i8"), np.zeros(3, "i8")):
        call = Call(OPS[name])
        call.operands["segment_ids"] = ids
        words = ("segment_ids", "int32 or int64" if ids.dtype == "f4" else "(4,)")
        call.refused(pb.InvalidProblemError, *words, functions=name == "segment_sum")
    call = Call(OPS[name])
    call.operands["segment_ids"] = np.zeros(4, "u8")
    call.refused(pb.UnsupportedError, "segment_ids", "uint64", functions=False)
    call.call()  # a function widens them
    assert not any(f.is_untouched() for f in call.fenced.values())


def test_lerp_backward_takes_a_pair():
    dy = np.ones(3, "f4")
    for out in (dy, (dy,), (dy, dy, dy)):
        with pytest.raises(pb.InvalidProblemError, match=r"^out: expected a pair \(da, db\)"):
            pb.lerp_backward(dy, weight=0.5, out=out)
    read_only = np.ones(3, "f4")
    read_only.flags.writeable = False
    for k, out in enumerate([(read_only, None), (None, read_only)]):
        with pytest.raises(pb.InvalidProblemError, match=rf"^out\[{k}\]: .*writable"):
            pb.lerp_backward(dy, weight=0.5, out=out)


def test_wrong_descriptor_for_a_plan():
    descriptor = pb.ScanDescriptor("cumsum", (3,))
    with pytest.raises(
        pb.InvalidProblemError, match=r"expected a ScanBackwardDescriptor, got Scan"
    ):
        pb.ScanBackwardPlan.select(descriptor)


def test_stream_and_preference_of_other_types():
    plan = pb.ScanPlan.select(pb.ScanDescriptor("cumsum", (3,)))
    x, y = np.ones(3, "f4"), np.zeros(3, "f4")
    for stream in (5, "0", True, object()):
        with pytest.raises(pb.InvalidProblemError, match=r"^stream: expected a Stream or None"):
            plan.run(x=x, y=y, stream=stream)
    assert not y.any()
    for preference in ("numba", 0, False):
        with pytest.raises(pb.InvalidProblemError, match=r"^preference: expected a PlanPreference"):
            pb.ScanPlan.select(plan.descriptor, preference)


def test_thread_counts_of_numpy():
    before = pb.get_num_threads()
    try:
        pb.set_num_threads(np.int64(2))
        assert pb.get_num_threads() == 2
        assert type(pb.get_num_threads()) is int
    finally:
        pb.set_num_threads(before)


@pytest.mark.parametrize("n", [0, -1, 1.5, True, "two", None, np.float64(2), np.int64(0)])
def test_thread_counts(n):
    with pytest.raises(pb.InvalidProblemError, match=r"^n: expected a positive integer"):
        pb.set_num_threads(n)
    if n is not None:
        with pytest.raises(pb.InvalidProblemError, match=r"^threads: expected a positive integer"):
            pb.PlanPreference(threads=n)
