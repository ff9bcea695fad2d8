"""How pullback.jax meets XLA: the handler, its checks, the fallback, errors and processes."""

from __future__ import annotations

import ctypes
import inspect
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pullback as pb
import pullback.jax as pj
from jax_ops import NAMES, bind, bytes_of, cases, data, inputs
from pullback.core.catalog import OPS
from pullback.core.problem import describe
from pullback.cpu import program
from pullback.jax import handler, launches, lowering
from scripts import run_script

X = data((3, 5), np.float32)


def test_calls_go_through_the_ffi():
    assert lowering.ffi_problem() is None
    text = jax.jit(jax.grad(lambda x: pj.softmax(x)[0, 0])).lower(X).as_text()
    assert text.count(lowering.TARGET) == 2
    assert "callback" not in text


# Some of every family: the callback knows no op.
@pytest.mark.parametrize(
    "name", ["cumsum", "cumprod", "sum", "max", "softmax", "lerp", "segment_sum"]
)
def test_callback_gives_the_same_bytes(name, monkeypatch):
    """With the FFI ruled out: value, gradient and vmap through the NumPy path."""
    shape, keywords = cases(name)[0]
    function = bind(name, keywords)
    arrays = inputs(name, shape, jnp.bfloat16 if name == "cumprod" else np.float32)

    def everything(*a):
        value, pull = jax.vjp(function, *a)
        return value, pull(value), jax.vmap(function)(*(jnp.stack([v, v]) for v in a))

    expected = jax.jit(everything)(*arrays)
    monkeypatch.setattr(lowering, "ffi_problem", lambda: "forced")
    lowered = jax.jit(lambda *a: everything(*a)).lower(*arrays)
    assert lowering.TARGET not in lowered.as_text()
    assert "callback" in lowered.as_text()
    for ours, theirs in zip(
        jax.tree.leaves(lowered.compile()(*arrays)), jax.tree.leaves(expected), strict=True
    ):
        assert bytes_of(ours) == bytes_of(theirs)


def test_abi_that_differs():
    known = (3 << 32, 192, 168)
    assert lowering.abi_mismatch(*known) is None
    assert "major version 1" in lowering.abi_mismatch((3 << 32) + 1, *known[1:])
    assert "api has 64 bytes" in lowering.abi_mismatch(known[0], 64, known[2])
    assert "frame has 160 bytes" in lowering.abi_mismatch(*known[:2], 160)


def test_version_in_the_header(tmp_path):
    assert lowering.header_version(str(tmp_path)) == 0
    header = tmp_path / "xla" / "ffi" / "api" / "c_api.h"
    header.parent.mkdir(parents=True)
    header.write_text("#define XLA_FFI_API_MAJOR 2\n\n#define XLA_FFI_API_MINOR 5\n")
    assert lowering.header_version(str(tmp_path)) == (5 << 32) + 2
    assert lowering.ffi_problem() is None
    version = handler.registry[handler.SEEN_VERSION]
    assert lowering.header_version(lowering.jax_ffi().include_dir()) == version


def test_what_xla_says_of_itself_was_noted():
    assert lowering.ffi_problem() is None
    notes = handler.registry
    assert notes[handler.ASKED] == 1
    if jax.__version_info__ >= (0, 5):  # before, XLA asked without showing its API
        assert notes[handler.SEEN_API] >= handler.SMALLEST["api"]
    assert notes[handler.SEEN_FRAME] >= handler.SMALLEST["frame"]


def test_reasons_to_fall_back(monkeypatch):
    assert lowering.ffi_problem() is None
    again = lowering.ffi_problem.__wrapped__
    with monkeypatch.context() as patch:
        patch.setenv(lowering.FALLBACK, "1")
        assert again() == "PULLBACK_JAX_CALLBACK is set"
    with monkeypatch.context() as patch:

        def refuse(*_, **__):
            raise RuntimeError("another version")

        patch.setattr(lowering.jax_ffi(), "register_ffi_target", refuse)
        assert again() == "XLA refused the handler: another version"
    monkeypatch.setattr(lowering.jax_ffi(), "register_ffi_target", lambda *_, **__: None)
    for word, value, reason in (
        (handler.ASKED, 0, "XLA did not ask the handler for its metadata"),
        (handler.SEEN_VERSION, 1, "XLA's FFI has major version 1, known is 0"),
        (handler.SEEN_API, 64, "XLA's FFI api has 64 bytes, needed are 72"),
    ):
        notes = handler.registry.copy()
        notes[word] = value
        with monkeypatch.context() as patch:
            patch.setattr(handler, "registry", notes)
            assert again() == reason


class FakeFrame:
    """A call frame and an API made by hand, whose errors are caught here."""

    def __init__(self):
        self.messages: list[tuple[str, int]] = []
        create = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.POINTER(ctypes.c_int64))
        self.create = create(self.error)
        self.api = np.zeros(24, np.int64)
        self.api[0] = 8 * 24
        self.api[handler.ERROR_CREATE] = ctypes.cast(self.create, ctypes.c_void_p).value
        self.array = np.array([handler.DTYPE_S64, 0, 0], np.int64)
        self.pointers = np.array([self.array.ctypes.data], np.int64)
        self.types = np.array([handler.ARRAY_ATTRIBUTE], np.int32)
        self.words = np.zeros(16, np.int64)
        self.array[handler.ARRAY_DATA] = self.words.ctypes.data
        self.frame = np.zeros(24, np.int64)
        self.frame[[0, handler.FRAME_API]] = 8 * 21, self.api.ctypes.data
        self.frame[handler.FRAME_STAGE] = handler.EXECUTE
        self.frame[[handler.ARGS_SIZE, handler.RETS_SIZE, handler.ATTRS_SIZE]] = 40, 40, 48
        self.frame[handler.ATTRS_COUNT] = 1
        self.frame[handler.ATTRS_TYPES] = self.types.ctypes.data
        self.frame[handler.ATTRS] = self.pointers.ctypes.data

    def error(self, arguments) -> int:
        self.messages.append((ctypes.string_at(arguments[2]).decode(), arguments[3] & 0xFFFFFFFF))
        return 77

    def call(self) -> int:
        function = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p)(handler.handler.address)
        return function(self.frame.ctypes.data)


@pytest.mark.parametrize(
    "change",
    [
        lambda f: f.frame.__setitem__(0, 100),
        lambda f: f.api.__setitem__(0, 64),
        lambda f: f.api.__setitem__(handler.API_VERSION, 1),
        lambda f: f.frame.__setitem__(handler.ARGS_SIZE, 48),
        lambda f: f.frame.__setitem__(handler.RETS_SIZE, 48),
        lambda f: f.frame.__setitem__(handler.ATTRS_SIZE, 56),
    ],
)
def test_handler_refuses_an_unknown_frame(change):
    fake = FakeFrame()
    change(fake)
    assert fake.call() == 77
    assert "layout of XLA's call frame" in fake.messages[0][0]
    assert fake.messages[0][1] == handler.UNIMPLEMENTED


@pytest.mark.parametrize(
    "change",
    [
        lambda f: f.frame.__setitem__(handler.ATTRS_COUNT, 2),
        lambda f: f.types.__setitem__(0, 3),
        lambda f: f.array.__setitem__(0, 4),
        lambda f: f.words.__setitem__(handler.VERSION, handler.LAUNCH_VERSION + 1),
    ],
)
def test_handler_refuses_an_unknown_launch(change):
    fake = FakeFrame()
    fake.words[handler.VERSION] = handler.LAUNCH_VERSION
    change(fake)
    assert fake.call() == 77
    assert "another version of pullback" in fake.messages[0][0]


def test_handler_does_nothing_before_execution():
    fake = FakeFrame()
    fake.frame[handler.FRAME_STAGE] = 0
    assert fake.call() == 0
    assert not fake.messages


def test_kernel_that_is_not_loaded():
    """An executable from elsewhere whose kernel this process has not met."""
    jax.block_until_ready(pj.softmax(X))  # registers the handler
    problem = describe(OPS["softmax"], "f32", X.shape, {})
    shapes = {"x": (X.shape, X.dtype), "y": (X.shape, X.dtype)}
    words, _ = launches.describe(problem, shapes, ("y",))
    words[handler.PROGRAM + program.HEAD + program.KERNEL] += 1
    call = lowering.jax_ffi().ffi_call(lowering.TARGET, jax.ShapeDtypeStruct(X.shape, X.dtype))
    with pytest.raises(jax.errors.JaxRuntimeError, match="not loaded in this process"):
        jax.block_until_ready(jax.jit(lambda x: call(x, launch=words))(X))


@pytest.mark.parametrize("platform", ["cuda", "rocm", "tpu"])
def test_other_platforms(platform):
    traced = jax.jit(pj.softmax).trace(X)
    with pytest.raises(pb.UnsupportedError, match=f"on the CPU only, got platform {platform}"):
        traced.lower(lowering_platforms=(platform,))


def test_errors():
    """Each names what was wrong."""
    with pytest.raises(pb.UnsupportedError, match=r"reverse: expected False .* for int32"):
        pj.cumsum(np.arange(3, dtype=np.int32), axis=0, reverse=True)
    with pytest.raises(pb.UnsupportedError, match=r"x: expected dtype .*, got complex64"):
        pj.norm2(np.ones(3, np.complex64))
    with pytest.raises(pb.InvalidProblemError, match="axis"):
        pj.cumsum(X, axis=2)
    with pytest.raises(pb.InvalidProblemError, match="distinct axes"):
        pj.softmax(X, axis=(0, -2))
    with pytest.raises(pb.InvalidProblemError, match="expected it or ddof, got both"):
        pj.var(X, ddof=1, correction=1)
    with pytest.raises(pb.UnsupportedError, match="ties"):
        pj.cummax(X, axis=0, ties="split")


def test_errors_of_lerp_and_segments():
    with pytest.raises(pb.UnsupportedError, match="correction: expected a value that is known"):
        jax.jit(lambda c: pj.var(X, ddof=c))(1)
    with pytest.raises(pb.InvalidProblemError, match="weight"):
        pj.lerp(X, X, "half")
    ids = np.zeros(3, np.int32)
    with pytest.raises(pb.UnsupportedError, match='out_of_range="raise": needs the values'):
        jax.jit(lambda i: pj.segment_sum(X, i, 2, out_of_range="raise"))(ids)
    with pytest.raises(pb.UnsupportedError, match="num_segments: needs the values"):
        jax.jit(lambda i: pj.segment_sum(X, i))(ids)
    with pytest.raises(pb.InvalidProblemError, match=r"segment_ids: expected shape \(3,\)"):
        pj.segment_sum(X, ids[:2], 2)
    with pytest.raises(pb.InvalidProblemError, match="segment_ids: expected integers"):
        pj.segment_sum(X, ids.astype(np.float32), 2)
    with pytest.raises(pb.InvalidProblemError, match="at least one dimension"):
        pj.segment_sum(np.float32(1.0), ids, 2)
    with pytest.raises(pb.InvalidProblemError, match="num_segments"):
        pj.segment_sum(X, ids, -1)


def test_long_rows_are_cut_over_threads():
    """Launches of several phases: the bytes of the NumPy path."""
    x = np.random.default_rng(7).uniform(0.5, 1.5, (1, 1_500_000)).astype(np.float32)
    assert bytes_of(pj.cumsum(x, axis=1)) == bytes_of(pb.cumsum(x))
    assert bytes_of(pj.logsumexp(x, axis=1)) == bytes_of(pb.logsumexp(x, axis=1))
    value, pull = jax.vjp(lambda a: pj.cumsum(a, axis=1), x)
    assert bytes_of(pull(value)[0]) == bytes_of(pb.cumsum_backward(np.asarray(value)))


def test_products_beyond_the_range_take_the_second_phase():
    """Products of 1e600 on the way to a gradient of 1 / x: without scaling they are inf."""
    x = np.full((2, 40), 1e30, np.float32)
    x[:, 20:] = 1e-30
    dy = np.zeros_like(x)
    dy[:, -1] = 1
    value, pull = jax.vjp(lambda a: pj.cumprod(a, axis=1), x)
    (dx,) = pull(dy)
    np.testing.assert_allclose(dx, 1 / x, rtol=1e-5)
    assert bytes_of(dx) == bytes_of(pb.cumprod_backward(dy, x=x, y=np.asarray(value)))


def test_several_threads_at_once():
    x = np.random.default_rng(8).uniform(0.5, 1.5, (600, 1024)).astype(np.float32)
    function = jax.jit(jax.grad(lambda a: (pj.softmax(a) ** 2).sum()))
    expected = bytes_of(function(x))
    found: list[bool] = []

    def work():
        found.extend(bytes_of(function(x)) == expected for _ in range(5))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [True] * 20


def test_importing_is_light():
    code = "import sys, pullback.jax; print('numba' in sys.modules, 'torch' in sys.modules)"
    assert run_script(code).split() == ["False", "False"]


def test_environment_variable_chooses_the_callback():
    code = """
    import jax, numpy as np, pullback.jax as pj
    x = np.ones((3, 5), np.float32)
    print("callback" in jax.jit(pj.softmax).lower(x).as_text(), float(pj.sum(pj.softmax(x))))
    """
    assert run_script(code, PULLBACK_JAX_CALLBACK="1").split() == ["True", "3.0"]


def test_compilation_cache_across_processes(tmp_path):
    """The second process loads the executable of the first and finds its own kernel."""
    code = """
    import jax, numpy as np, pullback.jax as pj
    hits = []
    jax.monitoring.register_event_listener(lambda name, **_: hits.append(name))
    f = jax.jit(lambda x: pj.cumsum(pj.softmax(x), axis=1))
    print(np.asarray(f(np.linspace(0, 1, 30, dtype=np.float32).reshape(2, 15))).tobytes().hex())
    print(sum("cache_hits" in name for name in hits))
    """
    settings = {
        "JAX_COMPILATION_CACHE_DIR": tmp_path,
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": 0,
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": -1,
    }
    first, second = (run_script(code, **settings).split() for _ in range(2))
    assert first[0] == second[0]
    assert int(first[1]) == 0
    assert int(second[1]) > 0


SHARDED = """
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
import pullback.jax as pj
from jax_releases import shard_map
assert len(jax.devices()) == 4
mesh = Mesh(np.array(jax.devices()), ("i",))
x = np.random.default_rng(0).uniform(0.5, 1.5, (8, 6, 5)).astype(np.float32)
shared = x[:2]
ids = np.array([1, 0], np.int32)

def alone(a, b):
    total = pj.softmax(a) * pj.cumprod(a, axis=1) + pj.logsumexp(a, axis=(1, 2), keepdims=True)
    return pj.lerp(total, b, 0.25) + pj.segment_sum(a, ids, 2)

def sharded(a, b):
    return shard_map(alone, mesh=mesh, in_specs=(P("i"), P()), out_specs=P("i"))(a, b)

def looped(a, b):
    return jnp.concatenate([alone(a[k : k + 2], b) for k in range(0, 8, 2)])

def both(f):
    def g(a, b):
        value, pull = jax.vjp(f, a, b)
        return value, pull(value)
    return jax.jit(g)

for ours, theirs in zip(
    jax.tree.leaves(both(sharded)(x, shared)), jax.tree.leaves(both(looped)(x, shared)), strict=True
):
    np.testing.assert_allclose(ours, theirs, rtol=2e-6, atol=1e-6)
pushed = lambda f: jax.jit(lambda a, b: jax.jvp(f, (a, b), (a, b))[1])(x, shared)
np.testing.assert_allclose(pushed(sharded), pushed(looped), rtol=2e-6, atol=1e-6)

# Left to the compiler: arrays that are spread over devices, along the op's axis and across it.
for spec in (P("i"), P(None, None, None)):
    spread = jax.device_put(x, NamedSharding(mesh, spec))
    for f in (lambda a: pj.cumsum(a, axis=0), lambda a: pj.softmax(a, axis=-1)):
        assert np.asarray(jax.jit(f)(spread)).tobytes() == np.asarray(f(x)).tobytes()
        assert np.asarray(f(spread)).tobytes() == np.asarray(f(x)).tobytes()
print("sharded")
"""


def test_several_devices():
    flags = "--xla_force_host_platform_device_count=4"
    assert run_script(SHARDED, XLA_FLAGS=flags).split() == ["sharded"]


@pytest.mark.parametrize("name", NAMES)
def test_docstrings_and_signatures(name):
    function = getattr(pj, name)
    op = next(op for op in pb.catalog() if op.name == name)
    backward = next(op for op in pb.catalog() if op.name == f"{name}_backward")
    text = inspect.getdoc(function)
    assert op.formula in text
    assert backward.formula in text
    for parameter in inspect.signature(function).parameters:
        assert parameter in text
    assert function.__module__ == "pullback.jax"
