"""Calls with ids, offsets or targets are prepared once, and their integers looked at every time."""

from __future__ import annotations

import pytest
import torch

import pullback.torch as pt
from pullback import InvalidProblemError
from pullback.threads import get_num_threads, set_num_threads


def table(rows, *columns, dtype=torch.float32):
    generator = torch.Generator().manual_seed(rows)
    return torch.randn(rows, *columns, generator=generator).to(dtype)


def added(x, ids, count):
    inside = (ids >= 0) & (ids < count)
    total = x.new_zeros((count, *x.shape[1:]))
    return total.index_add(0, ids[inside].long(), x[inside])


@pytest.mark.parametrize("kind", ["segment_sum", "segment_max", "segment_logsumexp"])
@pytest.mark.parametrize("kept", [torch.int64, torch.int32, torch.uint8, torch.int16])
def test_an_id_out_of_range_is_met_at_any_call(kind, kept):
    x, function = table(6, 3), getattr(pt, kind)
    good, other = torch.tensor([1, 0, 1, 1, 0, 0]), torch.tensor([0, 1, 1, 0, 0, 1])
    bad = torch.tensor([1, 0, 1, 2, 0, 0])
    for _ in range(3):
        first, second = (function(x, ids.to(kept), 2) for ids in (good, other))
        assert not torch.equal(first, second)
        with pytest.raises(InvalidProblemError, match=r"segment_ids.*got 2 at row 3"):
            function(x, bad.to(kept), 2)
        assert torch.equal(function(x, good.to(kept), 2), first)


def test_ids_that_are_dropped_or_have_to_be_in_order():
    x = table(5, 2)
    for ids in ([0, 0, 1, 2, 2], [0, 5, 1, -1, 2], [2, 1, 0, 0, 0]):
        ids = torch.tensor(ids)
        dropped = pt.segment_sum(x, ids, 3, out_of_range="drop")
        torch.testing.assert_close(dropped, added(x, ids, 3))
    for _ in range(2):
        assert pt.segment_sum(x, torch.tensor([0, 0, 1, 2, 2]), 3, sorted=True).shape == (3, 2)
        with pytest.raises(InvalidProblemError, match="ascending order"):
            pt.segment_sum(x, torch.tensor([0, 1, 0, 2, 2]), 3, sorted=True)


def test_offsets_are_looked_at_too():
    x = table(5, 2)
    for _ in range(2):
        good = pt.segment_sum(x, offsets=torch.tensor([0, 2, 5]))
        torch.testing.assert_close(good, torch.stack([x[:2].sum(0), x[2:].sum(0)]))
        with pytest.raises(InvalidProblemError, match="offsets"):
            pt.segment_sum(x, offsets=torch.tensor([0, 6, 5]))
        with pytest.raises(InvalidProblemError, match="offsets"):
            pt.segment_sum(x, offsets=torch.tensor([3, 2, 5]))


def test_as_many_segments_as_the_ids_of_this_call_name():
    x = table(4, 3).requires_grad_()
    for ids in ([0, 1, 0, 1], [3, 1, 0, 2], [0, 0, 0, 0]):
        ids = torch.tensor(ids)
        y = pt.segment_softmax(x, ids)
        known = pt.segment_softmax(x, ids, int(ids.max()) + 1)
        assert torch.equal(y, known)
        torch.testing.assert_close(added(y, ids, 4).detach()[ids], torch.ones(4, 3))
        (dx,) = torch.autograd.grad(y[:, 0].square().sum(), x)
        assert torch.isfinite(dx).all()


@pytest.mark.parametrize("shape", [(6,), (6, 3), (6, 2, 3), (6, 0), (0, 3), (0,)])
def test_tables_of_any_rank(shape):
    ids = torch.tensor([1, 0, 1, 1, 0, 2])[: shape[0]]
    x = table(*shape).requires_grad_()
    apart = torch.empty(*shape[::-1]).permute(*range(len(shape))[::-1]).copy_(x.detach())
    for given in (x, apart.requires_grad_()):
        for _ in range(2):
            y = pt.segment_sum(given, ids, 3)
            torch.testing.assert_close(y, added(given, ids, 3))
            (dx,) = torch.autograd.grad(y.sum(), given)
            assert torch.equal(dx, torch.ones(shape))


def test_rows_that_are_no_table():
    """Columns that do not merge: several launches, each of some of the columns."""
    x = table(6, 4, 5)[:, :, ::2].requires_grad_()
    ids = torch.tensor([1, 0, 1, 1, 0, 2])
    for _ in range(2):
        torch.testing.assert_close(pt.segment_sum(x, ids, 3), added(x, ids, 3))
        with pytest.raises(InvalidProblemError, match="got 9 at row 5"):
            pt.segment_sum(x, torch.tensor([1, 0, 1, 1, 0, 9]), 3)


def test_ids_in_steps_and_misaligned_ones():
    x, ids = table(4, 3), torch.tensor([1, 9, 0, 9, 1, 9, 0, 9])
    raw = torch.zeros(33, dtype=torch.uint8)
    odd = torch.frombuffer(raw.numpy(), dtype=torch.int64, count=4, offset=1)
    odd.copy_(ids[::2])
    for given in (ids[::2], odd, ids[::2].contiguous()):
        for _ in range(2):
            torch.testing.assert_close(pt.segment_sum(x, given, 2), added(x, ids[::2], 2))


@pytest.mark.parametrize("kept", [torch.int64, torch.int32, torch.uint8])
@pytest.mark.parametrize("ignore_index", [None, 7, -100])
def test_a_target_out_of_range_is_met_at_any_call(kept, ignore_index):
    logits = table(4, 5).requires_grad_()
    good, ignored = torch.tensor([0, 4, 2, 1]), torch.tensor([0, 4, 7, 1])
    for _ in range(2):
        loss = pt.cross_entropy(logits, good.to(kept), ignore_index=ignore_index)[0]
        torch.testing.assert_close(
            loss, torch.nn.functional.cross_entropy(logits, good, reduction="none")
        )
        if ignore_index == 7:
            found = pt.cross_entropy(logits, ignored.to(kept), ignore_index=7)[0]
            assert found[2] == 0
            (dx,) = torch.autograd.grad(found.sum(), logits)
            assert (dx[2] == 0).all()
        else:
            with pytest.raises(InvalidProblemError, match="target: expected positions"):
                pt.cross_entropy(logits, ignored.to(kept), ignore_index=ignore_index)


def test_targets_in_steps_and_of_any_rank():
    logits = table(2, 3, 4)
    wide = torch.tensor([[0, 9, 1, 9, 3, 9], [2, 9, 2, 9, 0, 9], [9] * 6, [9] * 6])
    for target in (wide[:2, ::2], wide[:2, ::2].contiguous(), wide[:2, ::2].t().contiguous().t()):
        for _ in range(2):
            loss = pt.cross_entropy(logits, target)[0]
            own = torch.nn.functional.cross_entropy(logits.movedim(-1, 1), target, reduction="none")
            torch.testing.assert_close(loss, own)
            with pytest.raises(InvalidProblemError, match="got 9"):
                pt.cross_entropy(logits, wide[:2, 1::2])
    one = pt.cross_entropy(torch.zeros(4), torch.tensor(2))[0]
    torch.testing.assert_close(one, torch.tensor(4.0).log())


def test_many_ids_are_looked_at_by_all_threads():
    x, ids = table(200_000, 1), torch.arange(200_000) % 7
    bad = ids.clone()
    bad[150_001] = -1
    before = get_num_threads()
    try:
        for threads in (2, 1):
            set_num_threads(threads)
            for _ in range(2):
                found = pt.segment_sum(x, ids, 7)
                torch.testing.assert_close(found, added(x.double(), ids, 7).float())
                with pytest.raises(InvalidProblemError, match="got -1 at row 150001"):
                    pt.segment_sum(x, bad, 7)
    finally:
        set_num_threads(before)
