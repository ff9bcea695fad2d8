"""Cox regression: the partial likelihood is a reversed logcumsumexp over the sorted times.

With patients sorted by time, those at risk at the i-th event are all patients from i to the end.
One scan computes the log-sum-exp for all i at once; forward and backward take time linear in the
number of patients.

Hospitals differ in how long they observe patients, so each hospital is a stratum: a patient is
compared only with those at risk in the same hospital. Sorted by hospital and time, that is the same
scan, split into runs.
"""

from __future__ import annotations

import torch
from timing import compare

import pullback.torch as pt


def make_patients(count: int, features: int, hospitals: int, seed: int = 0):
    """Features, events seen, offsets of the hospitals, and the weights that made the times.

    Sorted by hospital, then by time. Every hospital has a hazard of its own.
    """
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, features, generator=generator)
    weights = torch.linspace(-1, 1, features)
    hospital = torch.randint(0, hospitals, (count,), generator=generator)
    hazard = torch.exp(x @ weights + torch.randn(hospitals, generator=generator)[hospital])
    times = torch.empty(count).exponential_(generator=generator) / hazard
    observed = torch.rand(count, generator=generator) < 0.7
    order = times.argsort()
    order = order[hospital[order].argsort(stable=True)]
    sizes = torch.bincount(hospital, minlength=hospitals)
    offsets = torch.cat((torch.zeros(1, dtype=torch.int64), sizes.cumsum(0)))
    return x[order], observed[order], offsets, weights


def negative_log_likelihood(risk, observed, logcumsumexp):
    """Mean over the patients whose event was seen."""
    return -((risk - logcumsumexp(risk)) * observed).sum() / observed.sum()


def ours(offsets):
    return lambda risk: pt.logcumsumexp(risk, dim=0, reverse=True, offsets=offsets)


def torchs(offsets):
    sizes = offsets.diff().tolist()

    def scan(risk):
        return torch.cat([r.flip(0).logcumsumexp(0).flip(0) for r in risk.split(sizes)])

    return scan


def main(
    count: int = 20_000, features: int = 8, hospitals: int = 50, steps: int = 60
) -> tuple[float, float]:
    """Fit, print, and return the first and the last loss."""
    x, observed, offsets, true_weights = make_patients(count, features, hospitals)
    at_risk = ours(offsets)
    weights = torch.zeros(features, requires_grad=True)
    optimizer = torch.optim.Adam([weights], lr=0.1)

    def fit(scan):
        loss = negative_log_likelihood(x @ weights, observed, scan)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    losses = []
    for step in range(steps):
        losses.append(fit(at_risk))
        if step % 20 == 0 or step == steps - 1:
            print(f"step {step:3d}  loss {losses[-1]:.4f}")
    error = (weights.detach() - true_weights).abs().max().item()
    print(f"largest error of a weight {error:.3f}")
    apart = torchs(offsets)
    risk = x @ weights.detach()
    torch.testing.assert_close(at_risk(risk), apart(risk))
    compare("a step of fitting", lambda: fit(at_risk), lambda: fit(apart))
    return losses[0], losses[-1]


if __name__ == "__main__":
    main()
