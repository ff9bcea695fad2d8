"""Runs on tensors that lie as earlier ones did, through a driver that notes launches."""

from __future__ import annotations

import pytest

import pullback as pb

pytest.importorskip("torch")
pytest.importorskip("triton")

import torch
import triton

import triton_driver
from pullback.gpu.backend import RowRunner

DESCRIPTOR = pb.SoftmaxBackwardDescriptor("softmax", (4, 64), 1, "f32")
WORDS = 4 * 64


@pytest.fixture
def driver(monkeypatch):
    return triton_driver.install(monkeypatch)


@pytest.fixture
def long_way(monkeypatch):
    """How many runs went the long way."""
    runs, run = [], RowRunner.run
    monkeypatch.setattr(RowRunner, "run", lambda *a: runs.append(1) or run(*a))
    return runs


def tensor(shift: int = 0) -> torch.Tensor:
    """A matrix so many elements past an address that is a multiple of 16."""
    room = torch.zeros(WORDS + 8)
    first = (-room.data_ptr() % 16) // 4 + shift
    return room[first : first + WORDS].view(4, 64)


def operands(shift: int = 0) -> dict[str, torch.Tensor]:
    return {n: tensor(shift) for n in ("dy", "y", "dx")}


def addresses(launch) -> list[int]:
    """The pointers of a launch, in the order of the operands."""
    given = [a.data_ptr() if hasattr(a, "data_ptr") else a for a in launch[2]]
    return given[:3]


def test_another_run_has_other_addresses_and_nothing_else(driver, long_way):
    plan = pb.SoftmaxBackwardPlan.select(DESCRIPTOR, pb.PlanPreference(backend="triton"))
    first, second = operands(), operands()
    plan.run(**first)
    plan.run(**second)
    assert len(long_way) == 1
    one, other = driver.launches
    assert addresses(one) == [first[n].data_ptr() for n in ("dy", "y", "dx")]
    assert addresses(other) == [second[n].data_ptr() for n in ("dy", "y", "dx")]
    assert one[:2] == other[:2]
    assert one[2][3:] == other[2][3:]


def test_what_lies_otherwise_goes_the_long_way(driver, long_way):
    plan = pb.SoftmaxBackwardPlan.select(DESCRIPTOR, pb.PlanPreference(backend="triton"))
    plan.run(**operands())
    turned = operands()
    turned["y"] = torch.zeros(64, 4).T
    plan.run(**turned)
    plan.run(**operands(shift=1))
    assert len(long_way) == 3
    # Strides are another kernel's text, and so is an odd address.
    assert len({name for name, *_ in driver.launches}) == 1
    assert len({len(args) for *_, args in driver.launches}) == 2
    plan.run(**operands(shift=1))
    assert len(long_way) == 3
    even = [a - a % 16 for a in addresses(driver.launches[-1])]
    assert driver.launches[-1][2][3:5] == tuple(even[:2])


def test_memory_that_overlaps_is_refused_again(driver, long_way):
    plan = pb.SoftmaxBackwardPlan.select(DESCRIPTOR, pb.PlanPreference(backend="triton"))
    plan.run(**operands())
    room = torch.zeros(WORDS + 64)
    first = (-room.data_ptr() % 16) // 4
    over = {n: room[k : k + WORDS].view(4, 64) for n, k in (("dy", first), ("dx", first + 4))}
    with pytest.raises(pb.InvalidProblemError, match="dx: expected an output apart from dy"):
        plan.run(**over, y=tensor())
    # In place is another kernel, which waits before it writes.
    same = tensor()
    plan.run(dy=same, y=tensor(), dx=same)
    assert len(long_way) == 2
    assert len(driver.launches) == 2
    assert driver.launches[0][2][-1] is False
    assert driver.launches[1][2][-1] is True


def test_a_workspace_at_an_odd_address(driver, monkeypatch):
    """Triton would make another kernel for it, which joins chunks of columns in another order."""
    descriptor = pb.ReduceDescriptor("sum", (1, 200_000), 1, "f32")
    plan = pb.ReducePlan.select(descriptor, pb.PlanPreference(backend="triton"))
    x, y = torch.zeros(1, 200_000), torch.zeros(1, 1)
    room = torch.zeros(plan.workspace_size // 8 + 4, dtype=torch.int64)
    first = (-room.data_ptr() % 16) // 8
    found, run = [], triton.JITFunction.run
    monkeypatch.setattr(triton.JITFunction, "run", lambda *a, **k: found.append(1) or run(*a, **k))
    for _ in range(2):
        plan.run(x=x, y=y, workspace=room[first:])
    assert len(driver.launches) == 2 * len(found) > 0
    with pytest.raises(pb.MisalignedOperandError, match="multiple of 16"):
        plan.run(x=x, y=y, workspace=room[first + 1 :])


def test_subclasses_and_operands_that_require_gradients(driver, long_way):
    plan = pb.SoftmaxBackwardPlan.select(DESCRIPTOR, pb.PlanPreference(backend="triton"))
    plan.run(**operands())
    wrapped = operands()
    wrapped["y"] = torch.nn.Parameter(wrapped["y"], requires_grad=False)
    plan.run(**wrapped)
    assert len(long_way) == 2
    grows = operands()
    grows["dy"].requires_grad_()
    plan.run(**grows)
    assert len(long_way) == 3
    again = operands()
    before = again["dx"]._version
    plan.run(**again)
    assert len(long_way) == 3
    assert again["dx"]._version == before + 1
