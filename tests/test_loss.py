"""Cross entropy beside torch's, targets that are no classes, and the gradient in place."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import pullback as pb
from pullback.core.elements import ELEMENTS

RNG = np.random.default_rng(11)
LOGITS = RNG.standard_normal((6, 9)).astype(np.float32)
TARGET = np.array([0, 8, 3, 3, -100, 5])


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_equals_torch(smoothing):
    x = torch.tensor(LOGITS, requires_grad=True)
    how = {"ignore_index": -100, "label_smoothing": smoothing}
    own = torch.nn.functional.cross_entropy(x, torch.tensor(TARGET), reduction="none", **how)
    own.sum().backward()
    loss, lse = pb.cross_entropy(LOGITS, TARGET, **how)
    np.testing.assert_allclose(loss, own.detach(), rtol=2e-6, atol=2e-6)
    how |= {"target": TARGET, "lse": lse}
    dx = pb.cross_entropy_backward(np.ones(6, np.float32), logits=LOGITS, **how)
    np.testing.assert_allclose(dx, x.grad, rtol=2e-5, atol=2e-7)
    over = LOGITS.copy()
    pb.cross_entropy_backward(np.ones(6, np.float32), logits=over, **how, out=over)
    assert over.tobytes() == dx.tobytes()


@pytest.mark.parametrize("classes", [1, 7, 8, 31, 4096 + 21])
@pytest.mark.parametrize("element", ["f32", "bf16"])
def test_rows_find_their_target_wherever_it_is(classes, element):
    """Columns look at every element for it."""
    places = range(classes) if classes < 100 else [0, 8, 4087, 4095, 4096, 4103, 4111, 4112, 4116]
    target = np.array([*places, -100])
    x = RNG.standard_normal((len(target), classes)).astype(ELEMENTS[element].dtype)
    how = {"target": target, "ignore_index": -100, "label_smoothing": 0.1}
    rows = pb.cross_entropy(x, **how)
    columns = pb.cross_entropy(np.ascontiguousarray(x.T), axis=0, **how)
    for row, column in zip(rows, columns, strict=True):
        assert row.tobytes() == column.tobytes()
    wide = x.astype(np.float64)
    hit = np.take_along_axis(wide[:-1], target[:-1, None], 1)[:, 0]
    lse = np.log(np.exp(wide[:-1]).sum(1))
    expected = lse - 0.9 * hit - 0.1 * wide[:-1].mean(1)
    np.testing.assert_allclose(rows[0][:-1].astype(np.float64), expected, rtol=8e-3, atol=8e-3)
    assert rows[0][-1] == 0


def test_a_target_that_is_no_class_is_refused():
    out = np.full(6, np.nan, np.float32), np.full(6, np.nan, np.float32)
    for wrong, ignored in ((9, -100), (-1, -100), (-100, None)):
        target = TARGET.copy()
        target[4] = wrong
        with pytest.raises(pb.InvalidProblemError, match=rf"^target: .*\[0, 9\).*got {wrong}$"):
            pb.cross_entropy(LOGITS, target, ignore_index=ignored, out=out)
        described = pb.Descriptor("cross_entropy", (6, 9), ignore_index=ignored)
        given = {"logits": LOGITS, "target": target[:, None]}
        with pytest.raises(pb.InvalidProblemError, match=r"^target: "):
            pb.Plan.select(described).can_implement(
                **given, loss=out[0][:, None], lse=out[1][:, None]
            )
    assert np.isnan(out).all(), "nothing was written"


def test_a_call_made_again_looks_at_its_targets():
    targets = np.where(TARGET < 0, 2, TARGET)
    for target, how in ((targets, {}), (TARGET, {"ignore_index": -100})):
        first = pb.cross_entropy(LOGITS, target, **how)
        again = pb.cross_entropy(LOGITS, target, **how)
        assert [a.tobytes() for a in first] == [a.tobytes() for a in again]
        out = np.full(6, np.nan, np.float32), np.full(6, np.nan)
        for wrong in (9, -1, -101, 2**40):
            bad = target.copy()
            bad[2] = wrong
            with pytest.raises(pb.InvalidProblemError, match=rf"^target: .*got {wrong}$"):
                pb.cross_entropy(LOGITS, bad, **how, out=out)
        assert np.isnan(out).all(), "nothing was written"


def test_parameters_are_what_they_say():
    with pytest.raises(pb.InvalidProblemError, match=r"^label_smoothing: .*from 0 to 1, got 1.5"):
        pb.cross_entropy(LOGITS, TARGET, ignore_index=-100, label_smoothing=1.5)
    with pytest.raises(pb.InvalidProblemError, match=r"^z_loss: .*at least 0, got -1"):
        pb.cross_entropy(LOGITS, TARGET, ignore_index=-100, z_loss=-1)
