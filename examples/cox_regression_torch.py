"""Cox regression: the partial likelihood is a reversed logcumsumexp over the sorted times.

With patients sorted by time, those at risk at the i-th event are everyone from i to the end. Their
log-sum-exp for all i at once is one scan; forward and backward take time linear in the patients.
"""

from __future__ import annotations

import torch
from timing import compare

import pullback.torch as pt


def make_patients(count: int, features: int, seed: int = 0):
    """Features, whether the event was seen, and the weights that made the times; sorted by time."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, features, generator=generator)
    weights = torch.linspace(-1, 1, features)
    hazard = torch.exp(x @ weights)
    times = torch.empty(count).exponential_(generator=generator) / hazard
    observed = torch.rand(count, generator=generator) < 0.7
    order = times.argsort()
    return x[order], observed[order], weights


def negative_log_likelihood(risk, observed, logcumsumexp):
    """Mean over the patients whose event was seen."""
    return -((risk - logcumsumexp(risk)) * observed).sum() / observed.sum()


def ours(risk):
    return pt.logcumsumexp(risk, dim=0, reverse=True)


def torchs(risk):
    return risk.flip(0).logcumsumexp(0).flip(0)


def main(count: int = 20_000, features: int = 8, steps: int = 60) -> tuple[float, float]:
    """Fit, print, and return the first and the last loss."""
    x, observed, true_weights = make_patients(count, features)
    weights = torch.zeros(features, requires_grad=True)
    optimizer = torch.optim.Adam([weights], lr=0.1)
    losses = []
    for step in range(steps):
        loss = negative_log_likelihood(x @ weights, observed, ours)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if step % 20 == 0 or step == steps - 1:
            print(f"step {step:3d}  loss {loss.item():.4f}")
    error = (weights.detach() - true_weights).abs().max().item()
    print(f"largest error of a weight {error:.3f}")
    risk = (x @ weights).detach().requires_grad_()
    compare(
        "forward + backward",
        lambda: negative_log_likelihood(risk, observed, ours).backward(),
        lambda: negative_log_likelihood(risk, observed, torchs).backward(),
    )
    return losses[0], losses[-1]


if __name__ == "__main__":
    main()
