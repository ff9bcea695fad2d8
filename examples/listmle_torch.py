"""ListMLE: learning to rank whole lists by the likelihood of the right order (Plackett-Luce).

With the documents of a query in their true order, the model picks each one from those that remain.
This takes the log-sum-exp of the scores from each position to the end: a reversed logcumsumexp
along every row.
"""

from __future__ import annotations

import torch
from timing import compare

import pullback.torch as pt


def make_queries(queries: int, documents: int, features: int, seed: int = 0):
    """Features of the documents of every query, in order of falling relevance."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(queries, documents, features, generator=generator)
    noise = 0.3 * torch.randn(queries, documents, generator=generator)
    relevance = torch.tanh(x[..., 0] + x[..., 1] * x[..., 2]) + noise
    order = relevance.argsort(dim=1, descending=True)
    return torch.take_along_dim(x, order[..., None], dim=1)


def list_mle(scores, logcumsumexp):
    """Negative log-likelihood of the order in which the scores stand, per document."""
    return (logcumsumexp(scores) - scores).mean()


def ours(scores):
    return pt.logcumsumexp(scores, dim=1, reverse=True)


def torchs(scores):
    return scores.flip(1).logcumsumexp(1).flip(1)


def main(queries: int = 256, documents: int = 100, steps: int = 40) -> tuple[float, float]:
    """Train a small scorer, print, and return the first and the last loss."""
    torch.manual_seed(0)
    x = make_queries(queries, documents, features=6)
    model = torch.nn.Sequential(torch.nn.Linear(6, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    losses = []
    for step in range(steps):
        loss = list_mle(model(x)[..., 0], ours)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if step % 10 == 0 or step == steps - 1:
            print(f"step {step:3d}  loss {loss.item():.4f}")
    scores = model(x)[..., 0].detach().requires_grad_()
    torch.testing.assert_close(ours(scores), torchs(scores))
    compare(
        "forward + backward",
        lambda: list_mle(scores, ours).backward(),
        lambda: list_mle(scores, torchs).backward(),
    )
    return losses[0], losses[-1]


if __name__ == "__main__":
    main()
