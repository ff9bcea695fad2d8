"""Which device and stream a plan goes to, with torch's own functions standing in for a GPU."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace

import pytest

import pullback as pb
from pullback.gpu.backend import RowRunner
from pullback.gpu.device import Device, current_device

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
    assert current_device() == Device("cuda:1", arch, "cuda", 32)
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

    def _launch(self, views, workspace):
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


def test_a_stream_of_another_kind_or_device(runner):
    with pytest.raises(pb.InvalidProblemError, match=r"expected a torch.cuda.Stream, got int"):
        runner.run({}, None, pb.Stream(cuda=7))
    with pytest.raises(pb.InvalidProblemError, match=r"one of cuda:1, .*got one of cuda:0"):
        runner.run({}, None, pb.Stream(cuda=FakeStream("cuda:0")))
    assert not hasattr(runner, "seen")
