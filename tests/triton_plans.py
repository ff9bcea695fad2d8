"""Plans on the Triton backend: ids, workspace, streams, graphs; on a GPU, or in the interpreter."""

from __future__ import annotations

import warnings

import pytest
import torch

import pullback as pb
from cell_data import operands
from cells import OPS
from grid import default
from pullback.gpu import backend
from triton_bounds import wrong_with
from triton_runs import DEVICE, INTERPRETED, plan_of, run, to_numpy, to_torch

# The interpreter computes with NumPy, which warns of the infinities that formulas expect.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning:triton.runtime.interpreter")


def segment_plan(segments: int = 3, policy: str = "raise", is_sorted: bool = True):
    cell = default(OPS["segment_sum"], "f32").but(
        shape=(4, 2),
        segments=segments,
        is_sorted=is_sorted,
        out_of_range=policy,
    )
    tensors = {
        "input": torch.ones(4, 2, device=DEVICE),
        "output": torch.ones(segments, 2, device=DEVICE),
    }
    return plan_of(cell), tensors


def ids(*values: int) -> torch.Tensor:
    return torch.tensor(values, device=DEVICE)


def test_wrong_ids_are_left_out_and_noted():
    plan, tensors = segment_plan()
    plan.run(**tensors, segment_ids=ids(0, 1, 1, 7))
    assert tensors["output"].tolist() == [[1, 1], [2, 2], [0, 0]]
    with pytest.raises(pb.InvalidProblemError, match=r"ids in \[0, 3\), got another at row 3"):
        plan.raise_for_ids()
    plan.raise_for_ids()
    plan.run(**tensors, segment_ids=ids(0, 1, 1, 2))
    plan.raise_for_ids()


def test_ids_out_of_order_are_noted():
    plan, tensors = segment_plan()
    plan.run(**tensors, segment_ids=ids(0, 1, 0, 2))
    plan.run(**tensors, segment_ids=ids(0, 0, 1, 2))
    with pytest.raises(pb.InvalidProblemError, match=r"ascending order .* at row 2"):
        plan.raise_for_ids()
    plan, tensors = segment_plan(is_sorted=False)
    plan.run(**tensors, segment_ids=ids(0, 1, 0, 2))
    plan.raise_for_ids()


def test_wrong_ids_of_a_backward():
    """Rows without a source get zeros, and the first of them is noted."""
    cell = default(OPS["segment_sum_backward"], "f32").but(shape=(2000, 2), segments=3)
    plan = plan_of(cell)
    wrong = torch.zeros(2000, dtype=torch.int32, device=DEVICE)
    wrong[1500], wrong[1900] = 3, -1
    d_input = torch.full((2000, 2), float("nan"), device=DEVICE)
    tensors = {"d_output": torch.ones(3, 2, device=DEVICE), "d_input": d_input}
    plan.run(**tensors, segment_ids=wrong)
    empty = torch.nonzero((d_input == 0).all(1)).flatten()
    assert empty.tolist() == [1500, 1900]
    with pytest.raises(pb.InvalidProblemError, match=r"ids in \[0, 3\), got another at row 1500"):
        plan.raise_for_ids()


def test_dropped_ids_are_not_noted():
    plan, tensors = segment_plan(policy="drop")
    plan.run(**tensors, segment_ids=ids(-1, 0, 1, 9))
    plan.raise_for_ids()
    assert tensors["output"].tolist() == [[1, 1], [1, 1], [0, 0]]
    plan.run(**tensors, segment_ids=ids(0, 9, 1, 2))
    with pytest.raises(pb.InvalidProblemError, match=r"ascending order .* at row 2"):
        plan.raise_for_ids()


def test_can_implement_looks_at_ids():
    plan, tensors = segment_plan()
    plan.can_implement(**tensors, segment_ids=ids(0, 1, 1, 2))
    with pytest.raises(pb.InvalidProblemError, match=r"got -1 at row 0"):
        plan.can_implement(**tensors, segment_ids=ids(-1, 1, 1, 2))
    with pytest.raises(pb.InvalidProblemError, match=r"ascending order .* 0 at row 2"):
        plan.can_implement(**tensors, segment_ids=ids(0, 1, 0, 2))
    plan, tensors = segment_plan(policy="drop", is_sorted=False)
    plan.can_implement(**tensors, segment_ids=ids(-1, 9, 0, 2))


def test_workspace():
    cell = default(OPS["cummax_backward"], "f32").but(shape=(1, 5000))
    plan = plan_of(cell)
    assert 0 < plan.runnable().workspace_size <= plan.workspace_size
    x = torch.rand(cell.shape, device=DEVICE)
    dx, other = torch.empty_like(x), torch.empty_like(x)
    plan.run(dy=x, x=x, dx=dx)
    room = torch.empty(plan.workspace_size, dtype=torch.uint8, device=DEVICE)
    plan.run(dy=x, x=x, dx=other, workspace=room)
    assert torch.equal(dx, other)
    with pytest.raises(pb.WorkspaceTooSmallError):
        plan.run(dy=x, x=x, dx=dx, workspace=room[: plan.runnable().workspace_size - 8])
    longer = torch.empty(plan.workspace_size + 16, dtype=torch.uint8, device=DEVICE)
    with pytest.raises(pb.MisalignedOperandError, match="multiple of 16, got one 8 bytes beyond"):
        plan.run(dy=x, x=x, dx=dx, workspace=longer[8:])
    with pytest.raises(pb.InvalidProblemError, match="workspace: expected a torch tensor on"):
        plan.run(dy=x, x=x, dx=dx, workspace=bytearray(plan.workspace_size))


def test_identity_of_the_kernel():
    plan = plan_of(default(OPS["softmax_backward"], "bf16"))
    assert plan.sku.backend == "triton"
    assert plan.sku.arch == ("interpreter" if INTERPRETED else plan.sku.arch)
    assert INTERPRETED or plan.sku.arch.startswith(("sm_", "gfx"))
    assert plan.precision_guarantee.math_precision == "f32"
    assert plan.precision_guarantee.accumulator == "f32"
    assert plan.precision_guarantee.compensated
    assert plan.precision_guarantee.deterministic
    assert not plan.precision_guarantee.bit_stable_across_layouts
    assert plan_of(default(OPS["lerp"], "f64")).precision_guarantee.math_precision == "f64"
    assert plan_of(default(OPS["lerp"], "f64")).precision_guarantee.bit_stable_across_layouts
    assert not plan_of(default(OPS["sum"], "f64")).precision_guarantee.compensated


def test_same_bits_again_and_anywhere_in_the_batch():
    cell = default(OPS["var_backward"], "f32").but(shape=(6, 700))
    given = operands(cell, "wide")
    for n in given:
        given[n][:] = given[n][:1]
    first, second = run(cell, given)["dx"], run(cell, given)["dx"]
    assert first.tobytes() == second.tobytes()
    assert (first == first[:1]).all()


@pytest.fixture
def no_waiting(monkeypatch):
    """Fail where the host asks for a value of the device, or waits for it."""

    def waits(*_):
        raise AssertionError("the host waits for the device")

    if not INTERPRETED:
        with warnings.catch_warnings():
            # That it does not detect everything.
            warnings.simplefilter("ignore")
            torch.cuda.set_sync_debug_mode("error")
    monkeypatch.setattr(backend, "finish", waits)
    for method in ("item", "tolist", "nonzero", "__bool__", "__int__", "__float__"):
        monkeypatch.setattr(torch.Tensor, method, waits)
    yield
    if not INTERPRETED:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("name", OPS)
def test_run_waits_for_nothing(name, request):
    cell = default(OPS[name], "f32")
    tensors = {n: to_torch(a) for n, a in operands(cell, "normal").items()}
    for n in cell.outputs:
        tensors[n] = torch.empty(cell.shape_of(n), device=DEVICE)
    plan = plan_of(cell)
    request.getfixturevalue("no_waiting")
    plan.run(**tensors)


@pytest.mark.skipif(INTERPRETED, reason="functions send CPU tensors to the CPU backend")
@pytest.mark.parametrize("name", OPS)
def test_functions(name):
    """On a GPU the functions take CUDA tensors and give them back."""
    cell = default(OPS[name], "f32")
    given = operands(cell, "normal")
    results = cell.results({n: to_torch(a) for n, a in given.items()})
    assert all(r.is_cuda for r in results.values())
    named = {n: to_numpy(r, cell) for n, r in results.items()}
    wrong = wrong_with(cell, given, named)
    assert not wrong, wrong[0]


@pytest.mark.skipif(INTERPRETED, reason="the interpreter has no streams")
def test_streams():
    plan = plan_of(default(OPS["softmax"], "f32").but(shape=(512, 4096)))
    x = torch.randn(512, 4096, device=DEVICE)
    here, there = torch.empty_like(x), torch.empty_like(x)
    plan.run(x=x, y=here)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    plan.run(x=x, y=there, stream=pb.Stream(cuda=stream))
    stream.synchronize()
    assert torch.equal(here, there)


@pytest.mark.skipif(INTERPRETED, reason="the interpreter has no graphs")
@pytest.mark.parametrize("name", OPS)
def test_runs_are_captured(name):
    """A run captured into a CUDA graph, after one that compiled it, gives the bits of another."""
    cell = default(OPS[name], "f32")
    cell = cell.but(out_of_range="drop")
    given = {n: to_torch(a) for n, a in operands(cell, "normal").items()}
    outputs = {n: torch.empty(cell.shape_of(n), device=DEVICE) for n in cell.outputs}
    plan = plan_of(cell)
    plan.run(**given, **outputs)
    expected = {n: t.clone() for n, t in outputs.items()}
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        plan.run(**given, **outputs)
    for t in outputs.values():
        t.fill_(float("nan"))
    graph.replay()
    for n, t in outputs.items():
        assert torch.equal(t, expected[n])


@pytest.mark.parametrize("name", ["sum", "softmax_backward", "cumprod_backward", "segment_sum"])
def test_addresses_do_not_change_a_bit(name):
    """Operands at any address modulo 16."""
    cell = default(OPS[name], "f32")
    given = {n: to_torch(a) for n, a in operands(cell, "wide").items()}
    plan, found = plan_of(cell), set()
    for shift in range(4):
        moved = {}
        for n, t in given.items():
            room = torch.empty(t.numel() + 8, dtype=t.dtype, device=DEVICE)
            first = (-room.data_ptr() % 16) // t.element_size() + shift
            moved[n] = room[first : first + t.numel()].view(t.shape).copy_(t)
        outputs = {n: torch.empty(cell.shape_of(n), device=DEVICE) for n in cell.outputs}
        plan.run(**moved, **outputs)
        found.add(b"".join(to_numpy(t, cell).tobytes() for t in outputs.values()))
    assert len(found) == 1


@pytest.mark.skipif(INTERPRETED, reason="the interpreter has no streams")
def test_ids_are_noted_on_any_stream():
    plan, tensors = segment_plan()
    wrong = ids(0, 1, 1, 7)
    for _ in range(2):
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        plan.run(**tensors, segment_ids=wrong, stream=pb.Stream(cuda=stream))
        with pytest.raises(pb.InvalidProblemError, match="another at row 3"):
            plan.raise_for_ids()
