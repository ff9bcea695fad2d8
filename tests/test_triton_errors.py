"""What is said where Triton, a GPU or the right tensor is missing. No GPU needed."""

from __future__ import annotations

import builtins
import sys

import numpy as np
import pytest

import pullback as pb
from pullback.api import calling
from pullback.core.vocabulary import ElementKind
from pullback.memory.view import View

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

ON_TRITON = pb.PlanPreference(backend="triton")
SOFTMAX = pb.SoftmaxDescriptor("softmax", (2, 8))
no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")


def without(monkeypatch, *modules):
    """Make imports of modules fail."""
    real = builtins.__import__

    def importing(name, *args, **kwargs):
        if name.partition(".")[0] in modules:
            raise ImportError(f"No module named {name!r}")
        return real(name, *args, **kwargs)

    for module in list(sys.modules):
        if module.partition(".")[0] in modules or "pullback.gpu" in module:
            monkeypatch.delitem(sys.modules, module)
    monkeypatch.setattr(builtins, "__import__", importing)


@no_gpu
def test_no_gpu():
    with pytest.raises(pb.UnsupportedError, match="needs a GPU and torch sees none") as caught:
        pb.SoftmaxPlan.select(SOFTMAX, ON_TRITON)
    assert "leave the backend out" in str(caught.value)


def test_triton_missing(monkeypatch):
    without(monkeypatch, "triton")
    with pytest.raises(pb.UnsupportedError, match=r"pip install 'pullback\[gpu\]'"):
        pb.SoftmaxPlan.select(SOFTMAX, ON_TRITON)


def test_torch_missing(monkeypatch):
    without(monkeypatch, "torch")
    with pytest.raises(pb.UnsupportedError, match=r"torch tensors; install it with: pip install"):
        pb.SoftmaxPlan.select(SOFTMAX, ON_TRITON)


def cuda_view(device: str = "cuda:0") -> View:
    """A view as a CUDA tensor has it; its memory is never touched."""
    return View(4096, (2, 8), (32, 4), ElementKind.F32, "f32", 4, device, True, None)


def test_gpu_tensor_in_a_cpu_plan():
    plan = pb.SoftmaxPlan.select(SOFTMAX)
    with pytest.raises(pb.InvalidProblemError, match=r"x: expected memory on cpu.*got cuda:0") as e:
        plan.runnable().check({"x": cuda_view(), "y": cuda_view()})
    assert "PlanPreference(backend='triton')" in str(e.value)


class _Elsewhere:
    """A runner on a device that is not here."""

    device, arch, workspace_size = "cuda:0", "sm_90", 0

    def run(self, *_):
        raise AssertionError("must not run")

    def key_of(self, operands):
        return None


@pytest.fixture
def gpu_plan(monkeypatch):
    from pullback.gpu import backend

    monkeypatch.setattr(backend, "make_runner", lambda problem: _Elsewhere())
    return pb.SoftmaxPlan.select(SOFTMAX, ON_TRITON)


def test_cpu_tensor_in_a_gpu_plan(gpu_plan):
    x = torch.zeros(2, 8)
    with pytest.raises(pb.InvalidProblemError, match=r"x: expected memory on cuda:0.*got cpu"):
        gpu_plan.run(x=x, y=torch.zeros(2, 8))
    with pytest.raises(pb.InvalidProblemError, match="pass it on cuda:0"):
        gpu_plan.run(x=np.zeros((2, 8), np.float32), y=x)


def test_tensors_on_different_devices(gpu_plan):
    views = {"x": cuda_view(), "y": cuda_view("cuda:1")}
    with pytest.raises(pb.InvalidProblemError, match=r"y: expected memory on cuda:0.*got cuda:1"):
        gpu_plan.runnable().check(views)


def test_sku_names_the_device(gpu_plan):
    gpu_plan.runnable().runner.guarantee = pb.PrecisionGuarantee("f32", "f32")
    assert gpu_plan.sku.arch == "sm_90"
    assert gpu_plan.sku.backend is pb.BackendKind.TRITON


def test_functions_send_gpu_tensors_to_triton(monkeypatch):
    asked = []

    def on_device(device, problem):
        asked.append(device)
        raise pb.UnsupportedError("stop here")

    monkeypatch.setattr(calling, "view_of", lambda array, name: cuda_view("cuda:1"))
    monkeypatch.setattr(calling, "_runnable_on", on_device)
    with pytest.raises(pb.UnsupportedError, match="stop here"):
        pb.softmax(torch.zeros(2, 8))
    assert asked == ["cuda:1"]


def test_catalog_lists_both_backends():
    assert all(op.backends == ("numba", "triton") for op in pb.catalog())
