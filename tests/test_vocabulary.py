"""Enums, errors and descriptors: what is accepted, what is normalised, what is refused."""

from __future__ import annotations

import copy
import dataclasses
import math
import pickle
import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest

from pullback import Descriptor, catalog
from pullback import errors as E
from pullback.api import by_family as D
from pullback.api.descriptors import parameters_of
from pullback.core import families as F
from pullback.core import parse
from pullback.core import vocabulary as V
from pullback.core.catalog import OPS, register, unregister
from pullback.core.declare import REQUIRED, Parameter

BF16 = ml_dtypes.bfloat16


@pytest.mark.parametrize(
    ("error", "builtin"),
    [
        (E.UnsupportedError, NotImplementedError),
        (E.InvalidProblemError, ValueError),
        (E.BufferTooSmallError, ValueError),
        (E.MisalignedOperandError, ValueError),
        (E.WorkspaceTooSmallError, ValueError),
    ],
)
def test_errors_have_both_bases_and_pickle(error, builtin):
    assert issubclass(error, E.PullbackError)
    assert issubclass(error, builtin)
    back = pickle.loads(pickle.dumps(error("dy: text")))
    assert type(back) is error
    assert str(back) == "dy: text"


@pytest.mark.parametrize("error", [E.BufferTooSmallError, E.WorkspaceTooSmallError])
@pytest.mark.parametrize(
    "make",
    [
        lambda error: error(12, 8),
        lambda error: error(needed=12, got=8),
        lambda error: error("text", needed=12, got=8),
        lambda error: error(12, 8, operand="dx"),
    ],
)
def test_too_small_carries_lengths_through_pickle_and_copy(error, make):
    first = make(error)
    for err in (first, pickle.loads(pickle.dumps(first)), copy.copy(first)):
        assert (err.needed, err.got) == (12, 8)
        assert str(err) == str(first)
        assert err.operand == first.operand


def test_too_small_writes_its_message():
    text = str(E.BufferTooSmallError(12, 8, operand="dx"))
    assert text == "dx: buffer too small: needs 12 elements, got 8"
    assert str(E.WorkspaceTooSmallError(12, 8)) == "workspace too small: needs 12 bytes, got 8"
    with pytest.raises(TypeError, match="twice"):
        E.BufferTooSmallError(12, needed=12)


def test_words_are_strings():
    assert F.ScanKind.CUMPROD == "cumprod"
    assert f"{F.ScanKind.CUMPROD}|{V.Ties.SPLIT!s}" == "cumprod|split"
    assert {"cumprod": 1}[F.ScanKind.CUMPROD] == 1
    assert pickle.loads(pickle.dumps(V.ElementKind.BF16)) is V.ElementKind.BF16


def test_element_sizes_and_dtypes():
    assert {k.value: k.itemsize for k in V.ElementKind} == {"f32": 4, "f64": 8, "f16": 2, "bf16": 2}
    assert V.ElementKind.BF16.numpy_dtype == np.dtype(BF16)
    assert V.ElementKind.F64.numpy_dtype == np.float64


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (V.ElementKind.F16, "f16"),
        ("f32", "f32"),
        ("F32", "f32"),
        ("float32", "f32"),
        ("Float64", "f64"),
        ("double", "f64"),
        ("half", "f16"),
        ("bfloat16", "bf16"),
        ("BF16", "bf16"),
        (np.float32, "f32"),
        (np.dtype("<f8"), "f64"),
        (np.dtype("e"), "f16"),
        (BF16, "bf16"),
        (np.dtype(BF16), "bf16"),
    ],
)
def test_element_kind(value, kind):
    assert V.element_kind(value) is V.ElementKind(kind)


def test_element_kind_of_torch_and_jax():
    torch = pytest.importorskip("torch")
    for name in ("float32", "float64", "float16", "bfloat16"):
        assert V.element_kind(getattr(torch, name)) is V.element_kind(name)
    for dtype in (torch.int32, torch.complex64, torch.bool, torch.float8_e4m3fn):
        with pytest.raises(E.UnsupportedError, match=str(dtype)):
            V.element_kind(dtype)
    jnp = pytest.importorskip("jax.numpy")
    for name in ("float32", "float64", "float16", "bfloat16"):
        assert V.element_kind(getattr(jnp, name)) is V.element_kind(name)
    with pytest.raises(E.UnsupportedError):
        V.element_kind(jnp.int32)


@pytest.mark.parametrize(
    "value",
    [
        "f8", "float", "", float, int, np.int32, np.dtype(">f4"), np.complex64, np.longdouble,
        None, 32, [], np.ones(2, np.float32), V.MathPrecision.F32,
    ],
    ids=repr,
)  # fmt: skip
def test_element_kind_refuses(value):
    with pytest.raises(E.UnsupportedError, match="f32, f64, f16, bf16") as caught:
        V.element_kind(value, "dtype of dy")
    assert str(caught.value).startswith("dtype of dy:")
    assert repr(value) in str(caught.value)


@pytest.mark.parametrize(
    ("enum", "value", "member"),
    [
        (F.ScanKind, "LogCumsumExp", F.ScanKind.LOGCUMSUMEXP),
        (F.ScanKind, F.ScanKind.CUMSUM, F.ScanKind.CUMSUM),
        (F.ReduceKind, "LogSumExp", F.ReduceKind.LOGSUMEXP),
        (F.SoftmaxKind, "LogSoftmax", F.SoftmaxKind.LOG_SOFTMAX),
        (F.SoftmaxKind, "log-softmax", F.SoftmaxKind.LOG_SOFTMAX),
        (F.BinaryKind, "Lerp", F.BinaryKind.LERP),
        (F.SegmentKind, "UnsortedSegmentSum", F.SegmentKind.UNSORTED_SEGMENT_SUM),
        (V.BackendKind, "NUMBA", V.BackendKind.NUMBA),
    ],
)
def test_parse_enum(enum, value, member):
    assert V.parse_enum(enum, value, "kind") is member


def test_parse_enum_refuses_with_a_hint():
    with pytest.raises(E.UnsupportedError, match=r"^kind: .*'cumpord'.*did you mean 'cumprod'"):
        V.parse_enum(F.ScanKind, "cumpord", "kind")
    with pytest.raises(E.UnsupportedError, match="cumsum, cumprod, cummax, cummin, logcumsumexp"):
        V.parse_enum(F.ScanKind, 3, "kind")
    # SoftmaxKind.SOFTMAX spells a category too, but it is not one.
    with pytest.raises(E.UnsupportedError):
        V.parse_enum(V.OpCategory, F.SoftmaxKind.SOFTMAX, "category")


def test_preference_and_stream():
    assert V.PlanPreference() == V.PlanPreference(backend=None, threads=None)
    assert V.PlanPreference("numba", np.int64(2)) == V.PlanPreference(V.BackendKind.NUMBA, 2)
    assert V.PlanPreference("triton").backend is V.BackendKind.TRITON
    with pytest.raises(E.UnsupportedError, match=r"^backend: .*numba, triton"):
        V.PlanPreference("cuda")
    for threads in (0, -1, 1.5, "2", True):
        with pytest.raises(E.InvalidProblemError, match=r"^threads: .*positive"):
            V.PlanPreference(threads=threads)
        with pytest.raises(E.InvalidProblemError, match=r"^threads: .*positive"):
            V.Stream(threads=threads)
    assert V.Stream(2).threads == 2
    with pytest.raises(dataclasses.FrozenInstanceError):
        V.Stream().threads = 3


def test_guarantee_and_sku_are_values():
    guarantee = V.PrecisionGuarantee("f64", "f64")
    assert guarantee == V.PrecisionGuarantee(V.MathPrecision.F64, V.ElementKind.F64)
    assert guarantee != V.PrecisionGuarantee("f64", "f64", bit_stable_across_layouts=False)
    fields = ("scan", "cumsum", "f32", None, None, None, "x86_64", "numba", guarantee)
    assert hash(V.KernelSku(*fields)) == hash(V.KernelSku(*fields))
    assert [f.name for f in dataclasses.fields(V.KernelSku)] == [
        "category", "op", "element", "aux_element", "layout", "epilogue", "arch", "backend",
        "precision_guarantee",
    ]  # fmt: skip


AXIAL = [
    (D.ScanDescriptor, "cumsum", "scan_axis"),
    (D.ScanBackwardDescriptor, "cumsum", "scan_axis"),
    (D.SoftmaxDescriptor, "softmax", "softmax_axis"),
    (D.SoftmaxBackwardDescriptor, "softmax", "softmax_axis"),
    (D.ReduceDescriptor, "sum", "reduce_axis"),
    (D.ReduceBackwardDescriptor, "sum", "reduce_axis"),
]
SEGMENT = [
    D.SegmentSumDescriptor,
    D.SegmentSumBackwardDescriptor,
    D.UnsortedSegmentSumDescriptor,
    D.UnsortedSegmentSumBackwardDescriptor,
]
BINARY = [D.BinaryParamDescriptor, D.BinaryParamBackwardDescriptor]


@pytest.mark.parametrize(("cls", "kind", "axis"), AXIAL)
def test_same_meaning_is_equal(cls, kind, axis):
    a = cls(kind, (2, 3), **{axis: -1}, element="f32")
    b = cls(kind.title(), [np.int64(2), 3], **{axis: np.int32(1)}, element=np.float32)
    assert a == b
    assert hash(a) == hash(b)
    assert a != cls(kind, (2, 3), **{axis: 0})
    assert a != cls(kind, (2, 3), **{axis: 1}, element="f64")
    assert all(type(dim) is int for dim in b.input_shape)
    assert type(b.kind).__name__.endswith("Kind")
    assert b.element is V.ElementKind.F32
    assert pickle.loads(pickle.dumps(a)) == a
    assert dataclasses.replace(a, element="bf16").element is V.ElementKind.BF16


@pytest.mark.parametrize(("cls", "kind", "axis"), AXIAL)
def test_axial_refusals(cls, kind, axis):
    with pytest.raises(E.UnsupportedError, match=r"^kind: "):
        cls("median", (2, 3))
    with pytest.raises(E.UnsupportedError, match=r"^element: .*int32"):
        cls(kind, (2, 3), element=np.int32)
    for bad in (2, -3, 1.0, "1", True):
        with pytest.raises(E.InvalidProblemError, match=f"^{axis}: "):
            cls(kind, (2, 3), **{axis: bad})
    for shape in ((2, -1), (2, 1.5), (1,) * 65, 7, "23", None, (2**40, 2**40), (0, 2**70)):
        with pytest.raises(E.InvalidProblemError, match=r"^input_shape: "):
            cls(kind, shape)
    assert cls(kind, (1,) * 64)
    assert cls(kind, (0, 3))


@pytest.mark.parametrize(("cls", "kind", "axis"), AXIAL)
def test_rank_zero(cls, kind, axis):
    zero, minus = cls(kind, (), **{axis: 0}), cls(kind, (), **{axis: -1})
    assert zero == minus
    assert getattr(zero, axis) == (() if "reduce" in axis else 0)
    for bad in (1, -2):
        with pytest.raises(E.InvalidProblemError, match=f"^{axis}: .*rank 0"):
            cls(kind, (), **{axis: bad})


def test_forward_and_backward_are_different_things():
    assert D.SoftmaxDescriptor("softmax", (2,)) != D.SoftmaxBackwardDescriptor("softmax", (2,))
    assert not isinstance(D.ScanBackwardDescriptor("cumsum", (2,)), D.ScanDescriptor)


def test_positional_order_of_fields():
    scan = D.ScanBackwardDescriptor("cummax", (2, 3), 0, True, "f64", "last")
    assert dataclasses.astuple(scan)[:6] == ("cummax", (2, 3), 0, True, "f64", "last")
    reduce = D.ReduceBackwardDescriptor("var", (2, 3), 1, "f16", 0, "all")
    assert dataclasses.astuple(reduce)[:6] == ("var", (2, 3), (1,), "f16", 0, "all")


def test_scan_flags_and_ties():
    assert D.ScanDescriptor("cumsum", (2,), reverse=np.bool_(True)).reverse is True
    for reverse in (1, "yes", None):
        with pytest.raises(E.InvalidProblemError, match=r"^reverse: "):
            D.ScanDescriptor("cumsum", (2,), reverse=reverse)
    assert D.ScanBackwardDescriptor("cummax", (2,)).ties is V.Ties.FIRST
    for ties in ("split", "all", "middle"):
        with pytest.raises(E.UnsupportedError, match=r"^ties: .*first, last"):
            D.ScanBackwardDescriptor("cumsum", (2,), ties=ties)


def test_reduce_axes():
    cls = D.ReduceBackwardDescriptor
    assert cls("max", (2, 3, 4)).reduce_axis == (0, 1, 2)
    assert cls("max", (2, 3, 4)) == cls("max", (2, 3, 4), reduce_axis=[2, 0, -2])
    assert cls("max", (2, 3, 4), reduce_axis=(-1, 0)).dy_shape() == (1, 3, 1)
    assert cls("max", (2, 3, 4), reduce_axis=()).dy_shape() == (2, 3, 4)
    assert cls("max", ()).dy_shape() == ()
    assert D.ReduceDescriptor("max", (2, 3), 0).y_shape() == (1, 3)
    for axes in ((0, 0), (0, -3), (0, 3), (0, None)):
        with pytest.raises(E.InvalidProblemError, match=r"^reduce_axis: "):
            cls("max", (2, 3, 4), reduce_axis=axes)


def test_reduce_correction_and_ties():
    cls = D.ReduceBackwardDescriptor
    assert cls("var", (3,)).correction == 1
    assert cls("var", (3,), correction=0.0) == cls("var", (3,), correction=np.int8(0))
    assert cls("var", (3,), correction=0.5).correction == 0.5
    for bad in (math.nan, math.inf, "1", None, True, 1j):
        with pytest.raises(E.InvalidProblemError, match=r"^correction: "):
            cls("sum", (3,), correction=bad)
    assert cls("max", (3,)).ties is V.Ties.SPLIT
    for ties in V.Ties:
        assert cls("max", (3,), ties=ties.value).ties is ties
    with pytest.raises(E.UnsupportedError, match=r"^ties: .*did you mean 'split'"):
        cls("sum", (3,), ties="splits")


@pytest.mark.parametrize("cls", BINARY)
def test_binary_param(cls):
    assert cls("lerp", (2, 3), "f32", 1) == cls("Lerp", [2, 3], np.float32, np.float32(1))
    assert type(cls("lerp", (), "f32", np.float16(0.5)).param) is float
    with pytest.raises(TypeError):
        cls("lerp", (2,), "f32")
    for bad in ("0.5", None, 1j, True):
        with pytest.raises(E.InvalidProblemError, match=r"^param: "):
            cls("lerp", (2,), "f32", bad)
    with pytest.raises(E.InvalidProblemError, match=r"^shape: "):
        cls("lerp", (-2,), "f32", 0.5)
    with pytest.raises(E.UnsupportedError, match=r"^kind: "):
        cls("add", (2,), "f32", 0.5)


@pytest.mark.parametrize("cls", BINARY)
def test_binary_param_as_a_cache_key(cls):
    nan, other_nan = float("nan"), float("inf") - float("inf")
    assert cls("lerp", (2,), "f32", nan) == cls("lerp", (2,), "f32", other_nan)
    assert len({cls("lerp", (2,), "f32", nan), cls("lerp", (2,), "f32", other_nan)}) == 1
    assert cls("lerp", (2,), "f32", 0.0) != cls("lerp", (2,), "f32", -0.0)
    assert "_param_sign" not in repr(cls("lerp", (2,), "f32", 0.0))
    assert dataclasses.replace(cls("lerp", (2,), "f32", 1.0), param=-2.0).param == -2.0


@pytest.mark.parametrize("cls", SEGMENT)
def test_segment(cls):
    desc = cls(5, np.int64(3), num_segments=4, element="bfloat16")
    assert desc == cls(5, 3, 4, BF16, "raise")
    assert desc != cls(5, 3, 4, BF16, "drop")
    assert desc.kind == ("unsorted_segment_sum" if "Unsorted" in cls.__name__ else "segment_sum")
    shapes = (desc.input_shape(), desc.ids_shape(), desc.output_shape())
    assert shapes == ((5, 3), (5,), (4, 3))
    assert cls(0, 0, 0)
    for name in ("num_inputs", "embedding_dim", "num_segments"):
        for bad in (-1, 1.0, None):
            counts = {"num_inputs": 5, "embedding_dim": 3, "num_segments": 4, name: bad}
            with pytest.raises(E.InvalidProblemError, match=f"^{name}: "):
                cls(**counts)
    with pytest.raises(E.InvalidProblemError, match="num_segments x embedding_dim"):
        cls(1, 2**32, 2**31)
    with pytest.raises(E.UnsupportedError, match=r"^out_of_range: .*raise, drop"):
        cls(5, 3, 4, out_of_range="clip")
    with pytest.raises(E.UnsupportedError, match=r"^element: "):
        cls(5, 3, 4, "i32")


def test_importing_is_light():
    """No framework may come in with these modules."""
    code = (
        "import sys, pullback.memory.view, pullback.memory.overlap, pullback.api.by_family\n"
        "heavy = {'llvmlite', 'torch', 'jax', 'triton'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)


# The descriptor of any op.


def test_any_op_has_a_descriptor():
    for op in catalog():
        fields = {n: 0.5 for n, p in parameters_of(op).items() if p.default is REQUIRED}
        cut = {"segments": 3} if "segment_ids" in op.inputs else {}
        made = Descriptor(op.name, (4, 2), "f64", **cut, **fields)
        assert made == Descriptor(op, [np.int64(4), 2], np.float64, **cut, **fields)
        assert hash(made) == hash(pickle.loads(pickle.dumps(made)))
        assert pickle.loads(pickle.dumps(made)) == made
        assert made.problem().op is op
        with pytest.raises(dataclasses.FrozenInstanceError):
            made.shape = (2, 4)
        with pytest.raises(dataclasses.FrozenInstanceError):
            del made.shape


def test_parameters_are_those_of_the_row_in_one_form():
    assert Descriptor("cumsum", (2, 3), axis=-1) == Descriptor("cumsum", (2, 3), axis=np.int8(1))
    assert Descriptor("sum", (2, 3), axis=[1, -2]).parameters["axis"] == (0, 1)
    assert Descriptor("max_backward", (3,)) == Descriptor("max_backward", (3,), ties="Split")
    assert Descriptor("max_backward", (3,)) != Descriptor("max_backward", (3,), ties="first")
    assert Descriptor("var", (3,), correction=0.0) == Descriptor("var", (3,), correction=0)
    by_sorted = Descriptor("segment_sum_backward", (4, 2), segments=3, sorted=True)
    assert by_sorted.problem().is_sorted
    assert repr(by_sorted).startswith("Descriptor(op='segment_sum_backward', shape=(4, 2)")


def test_numbers_that_formulas_read_are_told_apart_by_their_bits():
    nan, other_nan = float("nan"), float("inf") - float("inf")
    same = {Descriptor("lerp", (2,), weight=nan), Descriptor("lerp", (2,), weight=other_nan)}
    assert len(same) == 1
    assert Descriptor("lerp", (2,), weight=0.0) != Descriptor("lerp", (2,), weight=-0.0)


@pytest.mark.parametrize(
    ("op", "fields", "error", "text"),
    [
        ("cumsums", {}, E.UnsupportedError, r"^op: .*'cumsums'; did you mean 'cumsum'"),
        (3, {}, E.UnsupportedError, r"^op: .*got 3"),
        ("cumsum", {"ties": "first"}, TypeError, "cumsum has no parameter 'ties'.*axis"),
        ("sum", {"keepdims": True}, TypeError, "sum has no parameter 'keepdims'"),
        ("gae", {"lam": 1.0}, TypeError, "gae: missing a required parameter: 'gamma'"),
        ("cumsum", {"axis": 2}, E.InvalidProblemError, "^axis: "),
        ("cumsum", {"element": "i32"}, E.UnsupportedError, "^element: "),
        ("cumsum", {"segments": 2}, E.InvalidProblemError, "^segments: expected None"),
        ("segment_sum", {}, E.InvalidProblemError, "^segments: .*None"),
        ("segment_sum", {"segments": 2, "shape": (4,)}, E.InvalidProblemError, "^shape: .*columns"),
        ("segment_sum", {"segments": 2**62}, E.InvalidProblemError, "^segments: .*bytes"),
        ("max_backward", {"ties": "both"}, E.UnsupportedError, "^ties: .*'both'"),
    ],
)
def test_refusals_name_the_field(op, fields, error, text):
    with pytest.raises(error, match=text):
        Descriptor(op, **{"shape": (4, 2), **fields})


def test_a_family_serves_every_kind_and_parameter_of_its_rows():
    served = {cls: {*cls.means.values(), *cls.face.fixed} for cls in D.DESCRIPTORS.values()}
    for op in catalog():
        wide = [cls for cls in served if op in cls.ops() and not cls.face.kind]
        assert len(wide) == (op.family in {face.family for face in F.FACES}), op.name
        for cls in served:
            if op in cls.ops():
                assert parameters_of(op).keys() <= served[cls], f"{op.name} in {cls.__name__}"


@pytest.fixture
def halving_sum():
    """A scan with a parameter that no op of the catalog has, and a descriptor that knows it."""
    halves = Parameter("halves", parse.flag, False, (False, True))
    like = OPS["cumsum"]
    row = dataclasses.replace(
        like,
        name="halfsum",
        kind="halfsum",
        parameters=(*like.parameters, halves),
        records=lambda halves, **chosen: like.records(**chosen),
    )
    register(row)
    yield D._descriptor(D.ScanDescriptor.face, "forward")
    unregister("halfsum")


def test_further_parameters_of_a_row_are_keyword_fields(halving_sum):
    made = halving_sum("halfsum", (2, 3), halves=True)
    assert made.halves is True
    assert made.parameters["halves"] is True
    assert made != halving_sum("halfsum", (2, 3))
    assert "halves" not in halving_sum("cumsum", (2, 3), halves=True).parameters
    with pytest.raises(E.InvalidProblemError, match=r"^halves: "):
        halving_sum("cumsum", (2, 3), halves=1)
    with pytest.raises(TypeError, match="positional"):
        halving_sum("halfsum", (2, 3), 0, False, "f32", True)
    exclusive = D.ScanBackwardDescriptor("cumsum", (2, 3), exclusive=True)
    assert exclusive.problem().chosen["exclusive"] is True
    assert exclusive != D.ScanBackwardDescriptor("cumsum", (2, 3))


def test_a_default_that_kinds_disagree_on_is_that_of_the_kind():
    assert D.SegmentDescriptor("segment_max", 4, 2, 3).empty == -math.inf
    assert D.SegmentDescriptor("segment_min", 4, 2, 3).empty == math.inf
    assert D.SegmentDescriptor("segment_min", 4, 2, 3, empty=0).empty == 0.0
    assert D.SegmentDescriptor("segment_sum", 4, 2, 3).empty is None


@pytest.mark.parametrize("cls", [D.SegmentDescriptor, D.SegmentBackwardDescriptor])
def test_segment_of_any_kind(cls):
    made = cls("SegmentSum", 5, 3, 4, "f64", out_of_range="drop", sorted=True)
    assert (made.kind, made.out_of_range, made.sorted) == ("segment_sum", "drop", True)
    assert made.problem().is_sorted
    assert made.output_shape() == (4, 3)
    assert cls("unsorted_segment_sum", 5, 3, 4).op.kind == "segment_sum"
    with pytest.raises(E.UnsupportedError, match=r"^kind: "):
        cls("segment_median", 5, 3, 4)
