"""Which device and stream a plan goes to, with torch's own functions standing in for a GPU."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace

import pytest

import pullback as pb
from pullback.core.vocabulary import ElementKind
from pullback.gpu.backend import RowRunner
from pullback.gpu.device import Device, current_device
from pullback.gpu.tiles import ALONE, room_of
from pullback.memory.view import View

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

ON_TRITON = pb.PlanPreference(backend="triton")
SOFTMAX = pb.SoftmaxDescriptor("softmax", (2, 8))


@pytest.fixture
def gpu(monkeypatch):
    """torch as it is with a GPU, as far as selecting a plan asks."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    monkeypatch.setattr(torch.version, "hip", None)
    return monkeypatch


@pytest.mark.parametrize(
    ("capability", "arch"),
    [((8, 0), "sm_80"), ((9, 0), "sm_90"), ((10, 0), "sm_100"), ((12, 1), "sm_121")],
)
def test_arch_is_the_compute_capability(gpu, capability, arch):
    gpu.setattr(torch.cuda, "get_device_capability", lambda index: capability)
    properties = SimpleNamespace(multi_processor_count=132)
    gpu.setattr(torch.cuda, "get_device_properties", lambda index: properties)
    assert current_device() == Device("cuda:1", arch, "cuda", 32)
    assert current_device().room == room_of(arch)
    # A slice of it may not have a whole cluster.
    properties.multi_processor_count = 14
    assert current_device().room == ALONE
    sku = pb.SoftmaxPlan.select(SOFTMAX, ON_TRITON).sku
    assert (sku.arch, sku.backend) == (arch, pb.BackendKind.TRITON)


def test_arch_of_an_amd_gpu(gpu):
    properties = SimpleNamespace(gcnArchName="gfx942:sramecc+:xnack-", warp_size=64)
    gpu.setattr(torch.version, "hip", "6.2")
    gpu.setattr(torch.cuda, "get_device_properties", lambda index: properties)
    assert current_device() == Device("cuda:1", "gfx942", "hip", 64)
    assert pb.SoftmaxPlan.select(SOFTMAX, ON_TRITON).sku.arch == "gfx942"


class FakeStream:
    def __init__(self, device: str):
        self.device = device


class Recorder(RowRunner):
    """A runner that notes what is current where it would launch."""

    def _launch(self, views, workspace, key):
        self.seen = tuple(self.entered)


@pytest.fixture
def runner(monkeypatch):
    """A runner on cuda:1 that knows which contexts of torch it is in."""
    plan = pb.SoftmaxPlan.select(SOFTMAX)
    made = Recorder(plan.runnable().problem, Device("cuda:1", "sm_90", "cuda"))
    made.entered = []

    @contextlib.contextmanager
    def enter(what):
        made.entered.append(what)
        yield
        made.entered.pop()

    monkeypatch.setattr(torch.cuda, "Stream", FakeStream)
    monkeypatch.setattr(torch.cuda, "device", enter)
    monkeypatch.setattr(torch.cuda, "stream", enter)
    return made


def test_launches_go_to_the_current_stream_of_the_plans_device(runner):
    for stream in (None, pb.Stream(), pb.Stream(threads=2)):
        runner.run({}, None, stream)
        assert runner.seen == ("cuda:1",)
    assert runner.entered == []


def test_launches_go_to_a_given_stream(runner):
    stream = FakeStream("cuda:1")
    runner.run({}, None, pb.Stream(cuda=stream))
    assert runner.seen == ("cuda:1", stream)
    assert runner.entered == []


def view_at(address: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> View:
    """A view of torch memory on a GPU that is not here; it is never touched."""
    owner = torch.zeros(1)
    return View(address, shape, strides, ElementKind.F32, "f32", 4, "cuda:1", True, owner)


def test_negative_offsets_reach_too_far_for_amds_buffer_instructions():
    from pullback.gpu.backend import pointer

    near = pointer(view_at(4096, (3, 8), (32, 4)))
    assert (near.data_ptr(), near.ptr_range(), near.dtype) == (4096, 96, torch.float32)
    for strides in ((-32, 4), (32, -4)):
        assert pointer(view_at(4096, (3, 8), strides)).ptr_range() > 2**31
    # A dimension of one element goes nowhere.
    assert pointer(view_at(4096, (1, 8), (-32, 4))).ptr_range() == 32


def test_twins_of_operands_at_odd_addresses():
    from pullback.gpu.backend import pointers_to

    held = pointers_to({"x": view_at(4096, (8,), (4,)), "y": view_at(4108, (8,), (4,))})
    assert set(held) == {"x", "y", "even y"}
    assert held["even y"].data_ptr() == 4096


def test_programs_of_a_launch():
    """CUDA counts programs and HIP threads."""
    from pullback.gpu.starts import most_programs

    assert most_programs("cuda", 512) == 2**31 - 1
    assert most_programs("hip", 1024) * 1024 < 2**32


def test_what_is_found_of_ids_outlives_the_streams_of_its_runs(monkeypatch):
    from pullback.gpu import device

    class Noted:
        is_cuda, device, seen = True, "cuda:1", ()

        def record_stream(self, stream):
            self.seen = (*self.seen, stream)

    monkeypatch.setattr(torch.cuda, "current_stream", lambda where: f"stream of {where}")
    found = Noted()
    device.outlives_stream(found)
    assert found.seen == ("stream of cuda:1",)
    device.outlives_stream(torch.zeros(1))


def test_a_stream_of_another_kind_or_device(runner):
    with pytest.raises(pb.InvalidProblemError, match=r"expected a torch.cuda.Stream, got int"):
        runner.run({}, None, pb.Stream(cuda=7))
    with pytest.raises(pb.InvalidProblemError, match=r"one of cuda:1, .*got one of cuda:0"):
        runner.run({}, None, pb.Stream(cuda=FakeStream("cuda:0")))
    assert not hasattr(runner, "seen")
