"""Cross entropy of logits against integer targets, with label smoothing and z-loss.

With l = log Σ exp(x), e the smoothing and n the classes, loss = l − (1−e)·x[target] − e·mean(x) +
z·l². Its gradient is d_loss·((1 + 2z·l)·exp(x − l) − (1−e)·[j = target] − e/n).
"""

from __future__ import annotations

from .folds import larger, log_add
from .primitives import INF, NAN, exp, log, where
from .record import Away, Monoid, Pass, RowFormula, Usual
from .reduce import exp_below, finite_peak


def logit(logits):
    return logits


def exp_picked_total(logits, index, target, shift):
    return exp_below(logits, shift), where(index == target, logits, 0.0), logits


def exp_total(logits, shift):
    return exp_below(logits, shift), logits


def added(sum1, picked1, total1, sum2, picked2, total2):
    return sum1 + sum2, picked1 + picked2, total1 + total2


def of_class(value, target, extent):
    """The value, or NaN for a target that is no class: where nobody looked at it, it is seen."""
    return where(target < 0, NAN, where(target < extent, value, NAN))


def loss_and_lse(
    shift, picked, total, sum_exp, target, extent, ignore_index, label_smoothing, z_loss
):
    lse = log(sum_exp) + shift
    smooth = where(label_smoothing == 0, 0.0, label_smoothing * (lse - total / extent))
    loss = (1.0 - label_smoothing) * (lse - picked) + smooth
    loss = loss + where(z_loss == 0, 0.0, z_loss * (lse * lse))
    ignored = target == ignore_index
    return where(ignored, 0.0, of_class(loss, target, extent)), where(ignored, 0.0, lse)


def online_step(logits, index, target):
    return logits, 1.0, where(index == target, logits, 0.0), logits


def online_join(shift1, sum1, picked1, total1, shift2, sum2, picked2, total2):
    shift, sum_exp = log_add(shift1, sum1, shift2, sum2)
    return shift, sum_exp, picked1 + picked2, total1 + total2


ONLINE = Monoid(
    online_step, online_join, (-INF, 0.0, 0.0, 0.0), ("shift", "sum_exp", "picked", "total")
)
# The peak is looked for alone, which has a short way; beside an exp the others cost little.
CROSS_ENTROPY = RowFormula(
    (
        Pass(Monoid(logit, larger, (-INF,), ("peak",), selects=True), finite_peak, ("shift",)),
        Pass(
            Monoid(
                exp_picked_total,
                added,
                (0.0, 0.0, 0.0),
                ("sum_exp", "picked", "total"),
                sums=3,
                away=Away("target", exp_total, ("sum_exp", "total")),
            )
        ),
    ),
    finish=loss_and_lse,
    online=RowFormula((Pass(ONLINE),), finish=loss_and_lse),
)


def gains(d_loss, lse, target, extent, ignore_index, label_smoothing, z_loss):
    gain = where(target == ignore_index, 0.0, of_class(d_loss, target, extent))
    scale = where(z_loss == 0, 1.0, 1.0 + 2.0 * z_loss * lse)
    spread = gain * label_smoothing / extent
    return gain, gain * scale, gain * (1.0 - label_smoothing), spread, lse, target


def unspread_gradient(logits, index, place, shift, gain, scaled_gain, hit):
    p = scaled_gain * exp(logits - shift)
    return where(gain == 0, 0.0, p - where(index == place, hit, 0.0))


def logits_gradient(logits, index, place, shift, gain, scaled_gain, hit, spread):
    p = scaled_gain * exp(logits - shift)
    return where(gain == 0, 0.0, p - where(index == place, hit, 0.0) - spread)


def is_spread(spread):
    return spread != 0


GAINS = Pass(close=gains, gives=("gain", "scaled_gain", "hit", "spread", "shift", "place"))
# Without label smoothing only the target's element is a difference.
UNSPREAD = RowFormula((GAINS,), apply=unspread_gradient, heavy=True)
CROSS_ENTROPY_BACKWARD = RowFormula(
    (GAINS,), apply=logits_gradient, heavy=True, usual=Usual(UNSPREAD, is_spread)
)
