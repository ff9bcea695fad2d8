"""A caller's workspace is checked like an output, before anything is written."""

from __future__ import annotations

import array
import mmap

import numpy as np
import pytest

import pullback as pb

torch = pytest.importorskip("torch")

SHAPE = (3, 2000)


class Run:
    """A plan that wants a workspace, with operands whose outputs start as ones."""

    def __init__(self) -> None:
        descriptor = pb.ScanBackwardDescriptor("cumprod", SHAPE, 1, element="f64")
        self.plan = pb.ScanBackwardPlan.select(descriptor)
        self.needed = self.plan.workspace_size
        rng = np.random.default_rng(0)
        x = rng.uniform(0.5, 1.5, SHAPE)
        self.operands = {"dy": rng.standard_normal(SHAPE), "x": x, "y": np.cumprod(x, 1)}
        self.operands["dx"] = np.ones(SHAPE)
        self.before = {n: a.copy() for n, a in self.operands.items()}

    def __call__(self, workspace: object) -> np.ndarray:
        self.plan.run(**self.operands, workspace=workspace)
        return self.operands["dx"]

    def refuses(self, workspace: object, error: type, match: str) -> pytest.ExceptionInfo:
        with pytest.raises(error, match=rf"(?s)^workspace\b.*{match}") as caught:
            self(workspace)
        assert type(caught.value) is error
        for name, held in self.operands.items():
            assert np.array_equal(held, self.before[name]), f"{name} was written"
        return caught


@pytest.fixture
def run() -> Run:
    made = Run()
    assert made.needed > 0
    return made


def words(run: Run) -> int:
    return -(-run.needed // 8)


def test_kinds_that_are_welcome(run):
    expected = run(None).copy()
    kinds = [
        np.empty(run.needed, np.uint8),
        np.empty((words(run), 1), np.float64),
        np.empty((2, words(run)), np.complex128, order="F"),
        np.empty(words(run)).reshape(-1, 1).T,
        np.empty(words(run), "datetime64[s]"),
        bytearray(run.needed + 8),
        memoryview(bytearray(run.needed)),
        array.array("d", bytes(8 * words(run))),
        mmap.mmap(-1, run.needed),
        torch.empty(run.needed, dtype=torch.uint8),
        torch.empty(words(run), 1, dtype=torch.float64),
        torch.empty(2 * words(run), dtype=torch.bool).repeat(8).view(torch.int16),
        pb.TensorRef(np.empty(words(run) + 3), (words(run), 1), offset=2),
        Foreign(np.empty(words(run))),
    ]
    for workspace in kinds:
        run.operands["dx"][:] = np.nan
        assert run(workspace).tobytes() == expected.tobytes(), type(workspace)


class Foreign:
    """An array of another library."""

    def __init__(self, held: np.ndarray) -> None:
        self.held = held

    def __dlpack__(self, **keywords):
        return self.held.__dlpack__(**keywords)

    def __dlpack_device__(self):
        return self.held.__dlpack_device__()


@pytest.mark.parametrize("got", [0, 1, -1])
def test_too_small(run, got):
    size = got % run.needed
    for workspace in (np.empty(size, np.uint8), bytearray(size), torch.empty(size).byte()):
        caught = run.refuses(workspace, pb.WorkspaceTooSmallError, f"needs {run.needed}")
        assert (caught.value.needed, caught.value.got) == (run.needed, size)


def test_with_repeats_or_gaps(run):
    n = run.needed
    zero = np.lib.stride_tricks.as_strided(np.zeros(1), (n,), (0,))
    for workspace in (
        torch.zeros(1, dtype=torch.float64).expand(n),
        torch.zeros(2 * n, dtype=torch.uint8)[::2],
        torch.zeros(n, 2).T,
        zero,
        np.empty((n, 2))[:, :1],
        np.empty(n)[::-1],
        memoryview(bytearray(2 * n))[::2],
        pb.TensorRef(np.empty(1), (n,), (0,)),
        pb.TensorRef(np.empty(2 * n), (n,), (2,)),
    ):
        run.refuses(workspace, pb.InvalidProblemError, "contiguous memory, got strides")


def test_on_another_device(run):
    meta = torch.empty(run.needed, dtype=torch.uint8, device="meta")
    run.refuses(meta, pb.InvalidProblemError, "memory on cpu.*got meta")


def test_of_a_gpu(run, monkeypatch):
    """As a tensor of a GPU looks to the plan."""
    from pullback.api import plan as plans
    from pullback.memory import buffer

    there = buffer._bytes_at(4096, run.needed, "cuda:0", None)
    monkeypatch.setattr(plans, "byte_view", lambda given, name: there)
    run.refuses(object(), pb.InvalidProblemError, "memory on cpu.*got cuda:0")


def test_read_only(run):
    held = np.empty(run.needed, np.uint8)
    held.flags.writeable = False
    graded = torch.zeros(words(run), dtype=torch.float64, requires_grad=True)
    for workspace in (held, bytes(run.needed), memoryview(held), graded):
        run.refuses(workspace, pb.InvalidProblemError, "writable")
    jnp = pytest.importorskip("jax.numpy")
    run.refuses(jnp.zeros(2 * run.needed), pb.InvalidProblemError, "writable")


def test_misaligned(run):
    raw = np.empty(run.needed + 16, np.uint8)
    start = -raw.ctypes.data % 8
    for off in (1, 4, 7):
        odd = raw[start + off :][: run.needed]
        for workspace in (odd, memoryview(odd), torch.from_numpy(odd)):
            run.refuses(workspace, pb.MisalignedOperandError, "multiple of 8")


@pytest.mark.parametrize("name", ["dy", "x", "y", "dx"])
def test_over_an_operand(run, name):
    """The operand itself, as a tensor, as bytes, and buffers that share only an end with it."""
    count = int(np.prod(SHAPE))
    room = np.ones(count + 2 * words(run))
    held = room[words(run) : words(run) + count].reshape(SHAPE)
    held[:] = run.operands[name]
    run.operands[name] = held
    before = room.tobytes()
    for workspace in (
        held,
        torch.from_numpy(held),
        held.view(np.uint8),
        room,
        room[: words(run) + 1],
        room[words(run) + count - 1 :],
    ):
        run.refuses(workspace, pb.InvalidProblemError, f"apart from {name}")
        assert room.tobytes() == before
    run(room[: words(run)])
    run(room[words(run) + count :])


def test_that_a_plan_does_not_need():
    """Refused alike where nothing would be written into it."""
    plan = pb.ScanPlan.select(pb.ScanDescriptor("cumsum", (4,), element="f64"))
    assert plan.workspace_size == 0
    x, y = np.ones(4), np.zeros(4)
    with pytest.raises(pb.InvalidProblemError, match=r"^workspace: expected memory apart from x"):
        plan.run(x=x, y=y, workspace=x)
    assert not y.any()
    for workspace in (np.empty(0), bytearray(), torch.empty(0), np.empty(3, np.uint8)[1:]):
        plan.run(x=x, y=y, workspace=workspace)
    assert y.tolist() == [1, 2, 3, 4]


def test_of_unknown_kinds(run):
    sparse = torch.zeros(words(run), dtype=torch.float64).to_sparse()
    objects = np.empty(run.needed, "O")
    for workspace in (5, "text", [0.0] * run.needed, object(), objects, sparse):
        run.refuses(workspace, pb.UnsupportedError, "expected")
    assert objects[0] is None


def test_freed_and_wrapped_tensors(run):
    freed = torch.zeros(words(run), dtype=torch.float64)
    freed.untyped_storage().resize_(0)
    run.refuses(freed, pb.UnsupportedError, "memory of its own")
    seen = []

    def inside(t):
        run.refuses(t, pb.UnsupportedError, "memory of its own")
        seen.append(t)
        return t

    torch.func.vmap(inside)(torch.zeros(2, words(run), dtype=torch.float64))
    assert seen
    with torch._subclasses.FakeTensorMode():
        run.refuses(torch.zeros(words(run)), pb.UnsupportedError, "memory of its own")


def test_torch_is_told_that_it_was_written(run):
    space = torch.zeros(words(run), dtype=torch.float64)
    version = space._version
    run(space)
    assert space._version > version


def test_ids_are_checked_before_the_workspace_is_used():
    descriptor = pb.UnsortedSegmentSumDescriptor(4, 2, 3, "f64")
    plan = pb.UnsortedSegmentSumPlan.select(descriptor)
    space = np.full(plan.workspace_size, 7, np.uint8)
    output = np.ones((3, 2))
    with pytest.raises(pb.InvalidProblemError, match=r"^segment_ids"):
        plan.run(
            input=np.ones((4, 2)), segment_ids=np.array([0, 1, 9, 2]), output=output,
            workspace=space,
        )  # fmt: skip
    assert (space == 7).all()
    assert (output == 1).all()
    ids = np.arange(plan.workspace_size // 8 + 1) % 3
    plan = pb.UnsortedSegmentSumPlan.select(pb.UnsortedSegmentSumDescriptor(len(ids), 2, 3, "f64"))
    big = np.zeros(plan.workspace_size // 8 + len(ids), np.int64)
    big[-len(ids) :] = ids
    with pytest.raises(pb.InvalidProblemError, match="apart from segment_ids"):
        plan.run(
            input=np.ones((len(ids), 2)), segment_ids=big[-len(ids) :], output=output,
            workspace=big,
        )  # fmt: skip
    assert (output == 1).all()
