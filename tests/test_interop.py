"""Views of user arrays: right address and strides, and a clear refusal of everything else."""

from __future__ import annotations

import gc
import warnings
import weakref

import ml_dtypes
import numpy as np
import pytest

from pullback.core.vocabulary import ElementKind
from pullback.errors import (
    BufferTooSmallError,
    InvalidProblemError,
    MisalignedOperandError,
    UnsupportedError,
)
from pullback.memory import results
from pullback.memory import view as interop
from pullback.memory.tensor_ref import TensorRef

BF16 = np.dtype(ml_dtypes.bfloat16)
DTYPES = {"f32": "f4", "f64": "f8", "f16": "f2", "bf16": BF16, "i32": "i4", "i64": "i8"}


def address_of(array):
    return array.__array_interface__["data"][0]


def check_numpy(v, array, dtype):
    assert v.address == address_of(array)
    assert (v.shape, v.strides) == (array.shape, array.strides)
    assert (v.dtype, v.itemsize, v.device) == (dtype, array.itemsize, "cpu")
    assert v.element is (ElementKind(dtype) if dtype[0] != "i" else None)


@pytest.mark.parametrize("dtype", DTYPES)
def test_numpy_layouts(dtype):
    base = np.zeros((4, 5, 6), DTYPES[dtype])
    layouts = [
        base, base.T, base[1:, ::2, ::-1], base[0, 0, 0:1], base[..., None],
        np.asfortranarray(base),
        np.broadcast_to(base[0, 0], (3, 6)), base[:0], np.array(base[0, 0, 0]), base[2:3, ::-3],
    ]  # fmt: skip
    for array in layouts:
        check_numpy(interop.view(array, "x"), array, dtype)
    assert interop.view(base, "x").writable
    assert not interop.view(layouts[6], "x").writable


def test_both_ways_to_the_address_agree():
    assert interop.address_of is interop._field_address, "expected the quick way on CPython"
    for array in (np.ones((3, 4)), np.ones((3, 4))[::-1, 1:], np.array(2.0), np.empty((0, 3))):
        assert interop._field_address(array) == interop._interface_address(array)


def test_int64_aliases_are_known():
    for code in ("l", "q", "i", "p"):
        assert interop.view(np.zeros(2, code), "ids").dtype in ("i32", "i64")


def test_numpy_scalars_are_rank_zero_and_read_only():
    for scalar in (np.float32(3), np.float64(2), BF16.type(1)):
        v = interop.view(scalar, "x")
        assert v.shape == ()
        assert not v.writable
    v = interop.view(np.float32(3), "x")
    assert np.ctypeslib.as_array((np.ctypeslib.ctypes.c_float * 1).from_address(v.address))[0] == 3


@pytest.mark.parametrize(
    "dtype",
    ["i2", "u4", "u8", "c8", "g", "O", "S4", "M8[s]", ml_dtypes.float8_e4m3fn, "f4,f4"],
)
def test_numpy_dtypes_refused(dtype):
    array = np.zeros(3, dtype)
    with pytest.raises(UnsupportedError, match=r"^dy: .*float32, float64, float16, bfloat16") as e:
        interop.view(array, "dy")
    assert str(array.dtype) in str(e.value)


def test_byte_swapped_is_refused():
    for dtype in (">f4", ">f8", ">f2", ">i8"):
        with pytest.raises(UnsupportedError, match=r"^dy: .*byte-swapped"):
            interop.view(np.zeros(3, dtype), "dy")


def test_misaligned_is_refused_with_the_address():
    raw = np.zeros(64, np.uint8)
    odd = raw[1:33].view(np.float32)
    with pytest.raises(MisalignedOperandError, match=f"^x: .*{address_of(odd):#x}"):
        interop.view(odd, "x")
    field = np.zeros(4, np.dtype([("a", "f4"), ("b", "i2")]))["a"]
    assert field.strides == (6,)
    with pytest.raises(MisalignedOperandError, match=r"strides \(6,\)"):
        interop.view(field, "x")
    aligned_field = np.zeros(4, np.dtype([("a", "f4"), ("b", "i4")]))["a"]
    assert interop.view(aligned_field, "x").strides == (8,)
    assert interop.view(odd[:0], "x").shape == (0,)


def test_subclasses(tmp_path):
    with pytest.raises(UnsupportedError, match=r"^x: .*masked"):
        interop.view(np.ma.masked_array(np.ones(3), [0, 1, 0]), "x")
    mapped = np.memmap(tmp_path / "file", np.float32, "w+", shape=(3, 4))
    check_numpy(interop.view(mapped, "x"), mapped, "f32")
    assert interop.view(mapped, "x").writable
    assert type(results.empty_like(mapped)) is np.ndarray


@pytest.mark.parametrize(
    "thing",
    [[1.0, 2.0], 3.0, 3, None, "x", (1.0,), b"1234", object()],
    ids=lambda v: type(v).__name__,
)
def test_other_things_are_refused(thing):
    with pytest.raises(UnsupportedError, match=r"^dy: expected a NumPy array.*asarray") as caught:
        interop.view(thing, "dy")
    assert type(thing).__name__ in str(caught.value)
    with pytest.raises(UnsupportedError, match=r"^dy: expected a NumPy array"):
        results.empty(thing, (2,), "f32", name="dy")


def test_a_dtype_object_is_not_an_array():
    """Classes and modules may define __dlpack__ for their instances; they are not operands."""
    with pytest.raises(UnsupportedError):
        interop.view(np.ndarray, "dy")


def test_output_view():
    array = np.ones(3, np.float32)
    assert interop.output_view(array, "dx").address == address_of(array)
    array.flags.writeable = False
    with pytest.raises(InvalidProblemError, match=r"^dx: .*read-only"):
        interop.output_view(array, "dx")


def test_owner_keeps_memory_alive():
    array = np.ones(3, np.float32)
    alive = weakref.ref(array)
    v = interop.view(array, "x")
    del array
    gc.collect()
    assert alive() is not None
    del v
    gc.collect()
    assert alive() is None


class TestTensorRef:
    def test_default_is_c_order(self):
        ref = TensorRef(np.zeros(24, np.float32), (2, 3, 4))
        assert ref.stride == (12, 4, 1)
        assert interop.view(ref, "x").strides == (48, 16, 4)

    @pytest.mark.parametrize("data_kind", ["numpy", "torch"])
    def test_reads_the_right_elements(self, data_kind):
        data = np.arange(24, dtype=np.float32)
        buffer = data
        if data_kind == "torch":
            buffer = pytest.importorskip("torch").from_numpy(data)
        for shape, stride, offset in [
            ((2, 3), (3, 1), 4),
            ((3, 2), (-2, 5), 10),
            ((4, 3), (0, 1), 21),
            ((), (), 23),
        ]:
            ref = TensorRef(buffer, shape, stride, offset)
            v = interop.view(ref, "x")
            steps = tuple(4 * s for s in stride)
            expected = np.lib.stride_tricks.as_strided(data[offset:], shape, steps)
            assert v.address == address_of(expected)
            assert (v.shape, v.strides, v.dtype) == (shape, steps, "f32")
            assert v.writable
            assert v.owner is ref

    @pytest.mark.parametrize(
        ("shape", "stride", "offset", "needed"),
        [
            ((2, 3), None, 5, 11),
            ((11,), None, 0, 11),
            ((3,), (5,), 0, 11),
            ((), None, 10, 11),
            ((3,), (-1,), 1, 11),
            ((3,), (-2,), 2, 12),
            ((), None, -1, 11),
            ((2, 2), (-3, 9), 2, 13),
        ],
    )
    def test_reaching_outside(self, shape, stride, offset, needed):
        ref = TensorRef(np.zeros(10, np.float32), shape, stride, offset)
        with pytest.raises(BufferTooSmallError, match=r"^dx: ") as caught:
            interop.view(ref, "dx")
        assert (caught.value.needed, caught.value.got) == (needed, 10)
        assert ("before the buffer" in str(caught.value)) == (ref.bounds()[0] < 0)

    def test_just_inside(self):
        data = np.zeros(10, np.float32)
        for args in [((10,),), ((2, 5),), ((3,), (-4,), 9), ((), None, 9), ((0, 99), None, 500)]:
            v = interop.view(TensorRef(data, *args), "x")
            assert v.shape == args[0]
        assert interop.view(TensorRef(data, (0,), None, 500), "x").address == address_of(data)

    def test_refusals(self):
        data = np.zeros(10, np.float32)
        for bad in (
            {"shape": (2, -1)},
            {"shape": 3},
            {"shape": (2.0,)},
            {"shape": (2,), "stride": 1},
            {"shape": (2,), "stride": (1, 1)},
            {"shape": (2,), "stride": (1.5,)},
            {"shape": (2,), "offset": None},
        ):
            with pytest.raises(InvalidProblemError, match=r"^TensorRef (shape|stride|offset)"):
                TensorRef(data, **bad)
        for flat in (data.reshape(2, 5), data[::2]):
            with pytest.raises(InvalidProblemError, match=r"^x: .*one-dimensional contiguous"):
                interop.view(TensorRef(flat, (2,)), "x")
        with pytest.raises(UnsupportedError, match="TensorRef"):
            interop.view(TensorRef(TensorRef(data, (10,)), (2,)), "x")
        with pytest.raises(UnsupportedError, match="list"):
            interop.view(TensorRef([1.0, 2.0], (2,)), "x")

    def test_allocation_follows_the_buffer(self):
        ref = TensorRef(np.zeros(10, np.float32), (2, 3))
        made = results.empty_like(ref)
        assert (type(made), made.shape, made.dtype) == (np.ndarray, (2, 3), np.float32)
        assert results.is_writable_kind(ref)
        assert results.restore(ref, made) is made


class TestNumpyAllocation:
    @pytest.mark.parametrize("dtype", DTYPES)
    def test_empty(self, dtype):
        made = results.empty(np.zeros(2), (3, 0, 2), dtype, name="x")
        assert made.shape == (3, 0, 2)
        assert interop.view(made, "x").dtype == dtype

    def test_empty_like_keeps_the_order(self):
        base = np.zeros((2, 3, 4), np.float32)
        for like in (base, base.T, base.transpose(1, 0, 2)):
            assert results.empty_like(like).strides == like.strides
        spread = np.broadcast_to(np.float32(1), (3, 4))
        assert 0 not in results.empty_like(spread).strides
        assert results.empty_like(np.float32(3)).shape == ()
        assert results.restore(base, base) is base


class TestTorch:
    @pytest.fixture(autouse=True)
    def _torch(self):
        self.torch = pytest.importorskip("torch")

    @pytest.mark.parametrize("dtype", DTYPES)
    def test_layouts(self, dtype):
        torch = self.torch
        kind = interop.DTYPES[dtype].name
        base = torch.zeros(4, 5, 6, dtype=getattr(torch, kind))
        for t in (base, base.mT, base[1:, ::2], base[0, 0], base[0, 0, 0], base[:0],
                  base[0].expand(3, 5, 6), base[0]):  # fmt: skip
            v = interop.view(t, "x")
            assert (v.address, v.shape) == (t.data_ptr(), tuple(t.shape))
            assert type(v.shape) is tuple
            assert v.strides == tuple(s * t.element_size() for s in t.stride())
            assert (v.dtype, v.itemsize, v.device) == (dtype, t.element_size(), "cpu")
            assert v.element is (ElementKind(dtype) if dtype[0] != "i" else None)
            assert v.writable
            assert v.owner is t

    def test_requires_grad(self):
        torch = self.torch
        leaf = torch.ones(3, requires_grad=True)
        for t in (leaf, leaf * 2, torch.nn.Parameter(torch.ones(3))):
            assert interop.view(t, "x").address == t.data_ptr()
            with pytest.raises(InvalidProblemError, match=r"^dx: .*requires grad"):
                interop.output_view(t, "dx")
            assert not results.empty_like(t).requires_grad
            assert type(results.empty_like(t)) is torch.Tensor
        assert interop.output_view(leaf.detach(), "dx").address == leaf.data_ptr()

    def refused(self, t, text):
        with pytest.raises(UnsupportedError, match=f"^x: .*{text}"):
            interop.view(t, "x")

    def test_dtypes_refused(self):
        torch = self.torch
        for dtype in (torch.complex64, torch.int16, torch.float8_e5m2):
            self.refused(torch.zeros(3, dtype=dtype), f"bfloat16.*{dtype}")

    def test_layouts_without_strides_refused(self):
        torch = self.torch
        self.refused(torch.ones(3, 3).to_sparse(), "sparse_coo")
        self.refused(torch.ones(0, 3).to_sparse(), "sparse_coo")
        jagged = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged)
        self.refused(jagged, "NestedTensor")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch says once per process that CSR is in beta
            csr = torch.ones(3, 3).to_sparse_csr()
        self.refused(csr, "sparse_csr")

    def test_tensors_without_memory_refused(self):
        torch = self.torch
        self.refused(torch.empty(3, device="meta"), "meta")
        self.refused(torch.empty(0, device="meta"), "meta")
        self.refused(torch._efficientzerotensor(3), "memory of its own")
        freed = torch.ones(4)
        freed.untyped_storage().resize_(0)
        self.refused(freed, "memory of its own")
        from torch._subclasses.fake_tensor import FakeTensorMode

        with FakeTensorMode():
            fake = torch.empty(3)
        self.refused(fake, "FakeTensor")
        self.refused(fake, "FakeTensor")

    @pytest.mark.parametrize("transform", ["vmap", "grad", "functionalize"])
    def test_wrapped_by_transforms_refused(self, transform):
        torch = self.torch
        seen = []

        def probe(x):
            self.refused(x, "pullback.torch")
            seen.append(x.shape)
            return x.sum()

        wrap = torch.vmap if transform == "vmap" else getattr(torch.func, transform)
        wrap(probe)(torch.ones(2, 3))
        assert len(seen) == 1

    def test_pending_negation_refused(self):
        torch = self.torch
        z = torch.ones(3, dtype=torch.cfloat)
        assert interop.view(z.imag, "x").strides == (8,)
        self.refused(z.conj().imag, "resolve_neg")

    def test_misaligned(self):
        torch = self.torch
        raw = np.zeros(64, np.uint8)
        odd = torch.frombuffer(memoryview(raw)[1:33], dtype=torch.float32)
        with pytest.raises(MisalignedOperandError, match=f"^x: .*{odd.data_ptr():#x}"):
            interop.view(odd, "x")

    def test_python_subclass_is_viewed_but_dispatch_subclass_refused(self):
        torch = self.torch

        class Plain(torch.Tensor):
            pass

        t = torch.ones(3).as_subclass(Plain)
        assert interop.view(t, "x").address == t.data_ptr()

        class Shell(torch.Tensor):
            @classmethod
            def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
                raise NotImplementedError

        self.refused(torch.Tensor._make_wrapper_subclass(Shell, (3,)), "Shell")

    def test_allocation(self):
        torch = self.torch
        like = torch.ones(3, 4).T
        made = results.empty_like(like)
        assert made.stride() == like.stride()
        made = results.empty(like, (2, 5), "bf16", name="x")
        assert (made.dtype, tuple(made.shape)) == (torch.bfloat16, (2, 5))
        assert results.is_writable_kind(like)
        assert results.restore(like, made) is made

    def test_mark_written_reaches_autograd(self):
        torch = self.torch
        x = torch.ones(3, requires_grad=True)
        saved = torch.ones(3)
        y = (x * saved).sum()
        results.mark_written(TensorRef(saved, (3,)))
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.backward()
        with torch.inference_mode():
            untracked = torch.ones(2)
        results.mark_written(untracked)
        results.mark_written(np.ones(2))


class TestJax:
    @pytest.fixture(autouse=True)
    def _jax(self):
        self.jax = pytest.importorskip("jax")
        self.jnp = pytest.importorskip("jax.numpy")

    @pytest.mark.parametrize("dtype", ["f32", "f16", "bf16", "i32"])
    def test_view_and_back_without_a_copy(self, dtype):
        like = self.jnp.ones((3, 4), interop.DTYPES[dtype])
        v = interop.view(like, "x")
        assert (v.address, v.shape, v.dtype) == (like.unsafe_buffer_pointer(), (3, 4), dtype)
        assert not v.writable
        with pytest.raises(InvalidProblemError, match=r"^dx: .*read-only"):
            interop.output_view(like, "dx")
        assert not results.is_writable_kind(like)

        made = results.empty_like(like)
        assert type(made) is np.ndarray
        assert made.shape == (3, 4)
        made[...] = np.arange(12).reshape(3, 4)
        back = results.restore(like, made)
        assert isinstance(back, self.jax.Array)
        assert back.dtype == like.dtype
        assert back.unsafe_buffer_pointer() == address_of(made)
        np.testing.assert_array_equal(np.asarray(back), made)

    def test_f64_needs_x64(self):
        like = self.jnp.ones(3)
        with pytest.raises(UnsupportedError, match="jax_enable_x64"):
            results.restore(like, np.ones(3))

    def test_empty_and_scalar_shapes(self):
        for shape in ((), (0,), (2, 0, 3)):
            like = self.jnp.ones(shape)
            assert interop.view(like, "x").shape == shape
            assert results.restore(like, results.empty_like(like)).shape == shape

    @pytest.mark.parametrize("transform", ["jit", "grad", "vmap"])
    def test_tracers_refused(self, transform):
        seen = []

        def probe(x):
            with pytest.raises(UnsupportedError, match=r"^x: .*tracer.*pullback\.jax"):
                interop.view(x, "x")
            seen.append(1)
            return x.sum()

        getattr(self.jax, transform)(probe)(self.jnp.ones((2, 3)))
        assert seen == [1]

    def test_deleted_refused(self):
        gone = self.jnp.ones(3) + 1
        gone.delete()
        with pytest.raises(InvalidProblemError, match=r"^x: .*deleted"):
            interop.view(gone, "x")

    def test_keys_and_other_dtypes_refused(self):
        for array in (self.jax.random.key(0), self.jnp.ones(3, "complex64")):
            with pytest.raises(UnsupportedError, match=r"^x: .*float32"):
                interop.view(array, "x")


class Foreign:
    """A DLPack producer that is no framework of ours."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **kwargs):
        return self.array.__dlpack__(**kwargs)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


class ForeignWithNamespace(Foreign):
    def __array_namespace__(self):
        class Namespace:
            @staticmethod
            def from_dlpack(x):
                return ForeignWithNamespace(x)

        return Namespace


class TestDlpack:
    def test_view(self):
        array = np.ones((3, 4), np.float32)[::-1]
        check_numpy(interop.view(Foreign(array), "x"), array, "f32")

    @pytest.mark.skipif(
        np.__version__.startswith("1."), reason="NumPy 1 exports no array that is read-only"
    )
    def test_read_only_stays_read_only(self):
        array = np.ones(3, np.float32)
        array.flags.writeable = False
        assert not interop.view(Foreign(array), "x").writable

    def test_refusals(self):
        class Broken(Foreign):
            def __dlpack__(self, **kwargs):
                raise RuntimeError("on strike")

        with pytest.raises(UnsupportedError, match=r"^x: .*Broken.*on strike"):
            interop.view(Broken(np.ones(3)), "x")
        with pytest.raises(UnsupportedError, match=r"^x: .*complex64"):
            interop.view(Foreign(np.ones(3, np.complex64)), "x")

    def test_bfloat16_through_torch(self):
        torch = pytest.importorskip("torch")
        t = torch.ones(2, 3, dtype=torch.bfloat16)
        v = interop.view(Foreign(t), "x")
        assert (v.address, v.dtype, v.strides, v.writable) == (t.data_ptr(), "bf16", (6, 2), False)

    def test_results(self):
        like = Foreign(np.ones(3, np.float32))
        made = results.empty_like(like)
        assert made.shape == (3,)
        assert not results.is_writable_kind(like)
        assert results.restore(like, made) is made
        back = results.restore(ForeignWithNamespace(np.ones(3)), made)
        assert type(back) is ForeignWithNamespace
        assert back.array is made
