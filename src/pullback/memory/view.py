"""From a user's array to an address.

``view`` turns a NumPy array, torch tensor, JAX array, ``TensorRef`` or DLPack object into a
:class:`View`: an address with shape, byte strides and dtype. Nothing is copied. Frameworks are
found through ``sys.modules`` and never imported: an array of a framework can only exist if the
caller has imported it.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ..core.elements import ELEMENTS
from ..core.vocabulary import ElementKind
from ..errors import InvalidProblemError, MisalignedOperandError, UnsupportedError
from .tensor_ref import TensorRef

# Name -> NumPy dtype of everything an operand may hold.
DTYPES: Mapping[str, np.dtype[Any]] = {name: e.dtype for name, e in ELEMENTS.items()}

_SUPPORTED = "float32, float64, float16, bfloat16 (or int32, int64 for segment ids)"

_Known = tuple["ElementKind | None", str, int]


def _known(name: str) -> _Known:
    element = ElementKind(name) if name in ElementKind._value2member_map_ else None
    return element, name, DTYPES[name].itemsize


_NUMPY_KNOWN: Mapping[np.dtype[Any], _Known] = {dt: _known(name) for name, dt in DTYPES.items()}

_ALIGNED = 0x0100
_WRITEABLE = 0x0400


class View:
    """Where an operand lies in memory.

    Attributes
    ----------
    address : int
        Address of the element with index zero on every axis.
    shape : tuple of int
        Shape.
    strides : tuple of int
        Steps in bytes.
    element : ElementKind or None
        Element type; None for integer ids.
    dtype : str
        A key of :data:`DTYPES`.
    itemsize : int
        Bytes per element.
    device : str
        "cpu" or "cuda:0" and so on.
    writable : bool
        Whether a kernel may write here.
    owner : object
        Keeps the memory alive.
    """

    __slots__ = (
        "address",
        "device",
        "dtype",
        "element",
        "itemsize",
        "owner",
        "shape",
        "strides",
        "writable",
    )

    def __init__(
        self,
        address: int,
        shape: tuple[int, ...],
        strides: tuple[int, ...],
        element: ElementKind | None,
        dtype: str,
        itemsize: int,
        device: str,
        writable: bool,
        owner: object,
    ) -> None:
        self.address = address
        self.shape = shape
        self.strides = strides
        self.element = element
        self.dtype = dtype
        self.itemsize = itemsize
        self.device = device
        self.writable = writable
        self.owner = owner

    def __repr__(self) -> str:
        return (
            f"View({self.dtype}, shape={self.shape}, strides={self.strides}, "
            f"address={self.address:#x}, device={self.device!r}, writable={self.writable})"
        )


def view(obj: Any, name: str) -> View:
    """Return where `obj` lies in memory.

    Parameters
    ----------
    obj : array
        NumPy array or scalar, torch tensor, JAX array, TensorRef, or an object with
        ``__dlpack__``.
    name : str
        Name of the operand, for messages.

    Raises
    ------
    UnsupportedError
        For a dtype, device or kind of array that kernels cannot read in place.
    InvalidProblemError
        For an array whose memory is gone.
    MisalignedOperandError
        If the address or a stride is not a multiple of the item size.
    BufferTooSmallError
        If a TensorRef reaches outside its buffer.
    """
    cls = type(obj)
    if cls is np.ndarray:
        # Spelled out here rather than called: this is the hot path of every plan.
        known = _NUMPY_KNOWN.get(obj.dtype)
        flags = obj.flags.num
        if known is not None and flags & _ALIGNED:
            element, dtype, itemsize = known
            return View(
                address_of(obj),
                obj.shape,
                obj.strides,
                element,
                dtype,
                itemsize,
                "cpu",
                flags & _WRITEABLE != 0,
                obj,
            )
        raise _numpy_error(obj, name)
    viewer = _VIEWERS.get(cls)
    if viewer is None:
        viewer = find_viewer(obj, name)
    return viewer(obj, name)


class _Memory:
    """Memory that NumPy may look at."""

    def __init__(self, v: View):
        self.__array_interface__ = {
            "data": (v.address, True),
            "shape": v.shape,
            "strides": v.strides,
            "typestr": DTYPES[v.dtype].str,
            "version": 3,
        }
        self.owner = v.owner


def as_numpy(v: View) -> np.ndarray[Any, Any]:
    """The memory of a view of the CPU as a read-only array of integers, bools or floats."""
    return np.asarray(_Memory(v))


def output_view(obj: Any, name: str) -> View:
    """Return ``view(obj, name)`` of a buffer that will be written, or raise InvalidProblemError."""
    result = view(obj, name)
    if result.writable:
        return result
    if getattr(obj, "requires_grad", False):
        reason = "requires grad, and writing into it would bypass autograd; pass it detached"
    elif isinstance(obj, np.ndarray):
        reason = "is a read-only array"
    else:
        reason = f"is a {type_name(obj)}, which is read-only"
    raise InvalidProblemError(f"{name}: expected a writable output, got one that {reason}")


def type_name(obj: object) -> str:
    cls = type(obj)
    return cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__name__}"


def _interface_address(array: np.ndarray[Any, Any]) -> int:
    return int(array.__array_interface__["data"][0])


_word_at = ctypes.c_size_t.from_address
_DATA_FIELD = object.__basicsize__


def _field_address(array: np.ndarray[Any, Any]) -> int:
    return _word_at(id(array) + _DATA_FIELD).value


def _pick_address() -> Callable[[np.ndarray[Any, Any]], int]:
    # The data pointer is the first field of NumPy's array struct, part of its C ABI. Reading it
    # takes 0.2 us; array.ctypes.data and __array_interface__ take 1.2 us, more than all the rest
    # of a view. The layout is verified before it is relied on.
    if sys.implementation.name != "cpython":
        return _interface_address
    base = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    for probe in (base, base[1, ::-1, 1:], np.array(1.0), np.empty(0), base.T):
        if _field_address(probe) != _interface_address(probe):
            return _interface_address
    return _field_address


address_of = _pick_address()


def _numpy_error(array: np.ndarray[Any, Any], name: str) -> Exception:
    dtype = array.dtype
    if dtype not in _NUMPY_KNOWN:
        if not dtype.isnative and dtype.newbyteorder("=") in _NUMPY_KNOWN:
            native = dtype.newbyteorder("=")
            return UnsupportedError(
                f"{name}: expected native byte order, got byte-swapped {native}; "
                f"convert it with .astype({native.name!r})"
            )
        return UnsupportedError(f"{name}: expected dtype {_SUPPORTED}, got {dtype}")
    return MisalignedOperandError(
        f"{name}: expected address and strides that are multiples of the item size "
        f"{dtype.itemsize}, got address {_interface_address(array):#x} and strides {array.strides}"
    )


def _view_ndarray(obj: Any, name: str) -> View:
    """View of a subclass of ndarray, as the plain memory beneath it."""
    if isinstance(obj, np.ma.MaskedArray):
        raise UnsupportedError(
            f"{name}: expected a plain array, got a masked array; the mask would be ignored, "
            f"so pass x.filled(value) or x.data"
        )
    return view(obj.view(np.ndarray), name)


def _view_scalar(obj: Any, name: str) -> View:
    array = np.asarray(obj)
    result = view(array, name)
    result.writable = False
    return result


def _view_tensor_ref(ref: TensorRef, name: str) -> View:
    if isinstance(ref.data, TensorRef):
        raise UnsupportedError(f"{name}: expected a flat array as TensorRef data, got a TensorRef")
    base = view(ref.data, name)
    itemsize = base.itemsize
    if len(base.shape) != 1 or (base.shape[0] > 1 and base.strides[0] != itemsize):
        raise InvalidProblemError(
            f"{name}: expected one-dimensional contiguous TensorRef data, got shape {base.shape} "
            f"with strides {base.strides} bytes"
        )
    ref.check_bounds(base.shape[0], name)
    base.owner = ref
    # An empty reference may carry any offset; keep its address inside the buffer.
    if 0 not in ref.shape:
        base.address += ref.offset * itemsize
    base.shape = ref.shape
    base.strides = tuple([step * itemsize for step in ref.stride])
    return base


def torch_dtype(torch: Any, dtype: str) -> Any:
    return getattr(torch, DTYPES[dtype].name)


def _torch_viewer(torch: Any) -> Callable[[Any, str], View]:
    known = {torch_dtype(torch, name): _known(name) for name in DTYPES}

    def view_torch(obj: Any, name: str) -> View:
        try:
            # Both raise on tensors without a storage of their own: sparse, nested, mkldnn, and
            # those that vmap and grad wrap.
            address = obj.data_ptr()
            steps = obj.stride()
            element, dtype, itemsize = known[obj.dtype]
        except (RuntimeError, NotImplementedError, KeyError, TypeError):
            raise _torch_error(torch, obj, name, known) from None
        shape = tuple(obj.shape)
        if obj.is_cpu:
            device = "cpu"
        elif obj.is_cuda:
            device = str(obj.device)
        else:
            raise _torch_error(torch, obj, name, known)
        # A null address is how fake, functional and zero tensors and freed storages show.
        if (not address and 0 not in shape) or address % itemsize or obj.is_neg():
            raise _torch_error(torch, obj, name, known)
        if len(steps) == 2:
            # A comprehension costs 0.2 us, a fifth of the view; matrices are the common case.
            strides: tuple[int, ...] = (steps[0] * itemsize, steps[1] * itemsize)
        else:
            strides = tuple([step * itemsize for step in steps])
        return View(
            address,
            shape,
            strides,
            element,
            dtype,
            itemsize,
            device,
            not obj.requires_grad,
            obj,
        )

    return view_torch


def _torch_error(torch: Any, obj: Any, name: str, known: Mapping[Any, _Known]) -> Exception:
    if obj.layout is not torch.strided or obj.is_nested:
        kind = "nested" if obj.is_nested else obj.layout
        return UnsupportedError(f"{name}: expected a strided torch tensor, got {kind} layout")
    if obj.dtype not in known:
        return UnsupportedError(f"{name}: expected dtype {_SUPPORTED}, got {obj.dtype}")
    if not (obj.is_cpu or obj.is_cuda):
        return UnsupportedError(
            f"{name}: expected a torch tensor on cpu or cuda, got one on {obj.device}"
        )
    if obj.is_neg():
        return UnsupportedError(
            f"{name}: expected plain memory, got a torch tensor whose negation is pending; "
            f"pass x.resolve_neg()"
        )
    try:
        address = obj.data_ptr()
    except (RuntimeError, NotImplementedError):
        address = 0
    if address:
        return MisalignedOperandError(
            f"{name}: expected an address that is a multiple of the item size "
            f"{obj.element_size()}, got {address:#x}"
        )
    return UnsupportedError(
        f"{name}: expected a torch tensor with memory of its own, got one without (wrapped by "
        f"vmap, grad or functionalize, fake, zero, or its storage was freed); inside torch "
        f"transforms use pullback.torch"
    )


def refuse_shell(torch: Any, obj: Any, name: str) -> None:
    # A subclass with __torch_dispatch__ may be an empty shell around other tensors, whose address
    # is not to be touched. Parameter and the like only change Python behaviour.
    disabled = torch._C._disabled_torch_dispatch_impl
    if type(obj).__torch_dispatch__ is not disabled:
        raise UnsupportedError(
            f"{name}: expected a plain torch tensor, got {type_name(obj)}, which may have no "
            f"memory of its own; inside torch transforms use pullback.torch"
        )


def _jax_viewer(jax: Any) -> Callable[[Any, str], View]:
    tracer = jax.core.Tracer

    def view_jax(obj: Any, name: str) -> View:
        if isinstance(obj, tracer):
            raise UnsupportedError(
                f"{name}: expected a JAX array with a value, got a tracer; inside jit, grad and "
                f"vmap use pullback.jax"
            )
        if obj.is_deleted():
            raise InvalidProblemError(f"{name}: the JAX array has been deleted or donated")
        devices = obj.devices()
        if len(devices) != 1 or next(iter(devices)).platform != "cpu":
            where = ", ".join(sorted(map(str, devices)))
            raise UnsupportedError(f"{name}: expected a JAX array on one cpu device, got {where}")
        try:
            array = np.asarray(obj)
        except Exception as error:
            raise UnsupportedError(
                f"{name}: expected a JAX array of {_SUPPORTED}, got {obj.dtype}: {error}"
            ) from error
        result = view(array, name)
        result.writable = False
        result.owner = (obj, array)
        return result

    return view_jax


def _view_dlpack(obj: Any, name: str) -> View:
    try:
        array = np.from_dlpack(obj)
    except Exception as error:
        # NumPy knows neither bfloat16 nor GPUs; torch, if the caller has loaded it, does.
        torch = _loaded("torch", "from_dlpack")
        try:
            if torch is None:
                raise error
            result = view(torch.from_dlpack(obj), name)
        except UnsupportedError:
            raise
        except Exception as reason:
            raise UnsupportedError(
                f"{name}: expected an array whose __dlpack__ gives {_SUPPORTED} on the cpu, got "
                f"{type_name(obj)}: {reason}"
            ) from reason
        result.writable = False
        return result
    return view(array, name)


def _loaded(framework: str, attribute: str) -> Any:
    """Return the framework if the caller has imported it, and completely."""
    module = sys.modules.get(framework)
    return module if module is not None and hasattr(module, attribute) else None


def _torch_plain_viewer() -> Callable[[Any, str], View] | None:
    torch = _loaded("torch", "Tensor")
    if torch is None:
        return None
    plain = _VIEWERS.get(torch.Tensor)
    if plain is None:
        plain = _VIEWERS[torch.Tensor] = _torch_viewer(torch)
    return plain


def is_torch(obj: object) -> bool:
    torch = _loaded("torch", "Tensor")
    return torch is not None and isinstance(obj, torch.Tensor)


def is_jax(obj: object) -> bool:
    jax = _loaded("jax", "Array")
    return jax is not None and isinstance(obj, jax.Array)


def find_viewer(obj: Any, name: str) -> Callable[[Any, str], View]:
    """Find how to view a type not met before, and remember it where that is safe."""
    cls = type(obj)
    if isinstance(obj, np.ndarray):
        return _view_ndarray
    if isinstance(obj, np.generic):
        return _view_scalar
    if is_torch(obj):
        plain = _torch_plain_viewer()
        assert plain is not None
        refuse_shell(sys.modules["torch"], obj, name)
        _VIEWERS[cls] = plain
        return plain
    if is_jax(obj):
        viewer = _VIEWERS[cls] = _jax_viewer(sys.modules["jax"])
        return viewer
    if hasattr(cls, "__dlpack__"):
        return _view_dlpack
    raise UnsupportedError(
        f"{name}: expected a NumPy array, torch tensor, JAX array, TensorRef or an object with "
        f"__dlpack__, got {type_name(obj)}; convert it with numpy.asarray first"
    )


_VIEWERS: dict[type, Callable[[Any, str], View]] = {TensorRef: _view_tensor_ref}
