"""Attention over sequences of different lengths, padded to one shape, some of them empty.

``where=`` says which positions exist. The padding is never read, so it may contain anything, and a
row without any position gives zeros with gradient zero. With the usual fill value of -inf such a
row becomes NaN, and a single NaN in a batch makes every weight NaN after the next step.
"""

from __future__ import annotations

import torch
from timing import compare

import pullback.torch as pt


def make_batch(count: int, length: int, features: int, seed: int = 0):
    """Sequences in which one position is marked; what stands there is to be found.

    Every eighth sequence is empty, and the padding holds whatever was there before: NaN.
    """
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, length + 1, (count,), generator=generator)
    marked = (torch.rand(count, generator=generator) * lengths).long()
    lengths[::8] = 0
    x = torch.randn(count, length, features, generator=generator)
    rows = torch.arange(count)
    x[:, :, 0] = 0.0
    x[rows, marked, 0] = 1.0
    wanted = torch.where(lengths > 0, x[rows, marked, 1], 0.0)
    there = torch.arange(length) < lengths[:, None]
    x[~there] = torch.nan
    return x, there, wanted


def ours(scores, there):
    return pt.softmax(scores, dim=-1, where=there)


def torchs(scores, there):
    filled = scores.masked_fill(~there, -torch.inf).softmax(-1)
    return filled.masked_fill(~there, 0.0)  # a row without any position would be NaN


class Reader(torch.nn.Module):
    """Scores every position, and reads what the softmax of the scores points at."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.score = torch.nn.Linear(features, 1)
        self.value = torch.nn.Linear(features, 1)

    def forward(self, x, there):
        known = x.masked_fill(~there[:, :, None], 0.0)
        weight = ours(self.score(known)[:, :, 0], there)
        return (weight * self.value(known)[:, :, 0]).sum(1)


def main(count: int = 256, length: int = 40, steps: int = 60) -> tuple[float, float]:
    """Train, print, and return the first and the last loss."""
    torch.manual_seed(0)
    x, there, wanted = make_batch(count, length, features=4)
    model = Reader(4)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    losses = []
    for step in range(steps):
        loss = (model(x, there) - wanted).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if step % 20 == 0 or step == steps - 1:
            print(f"step {step:3d}  loss {loss.item():.4f}")
    batch, heads, tokens = 8, 8, 128
    scores = torch.randn(batch, heads, tokens, tokens, requires_grad=True)
    slope = torch.randn(scores.shape)
    lengths = torch.randint(0, tokens + 1, (batch,))
    padded = (torch.arange(tokens) < lengths[:, None])[:, None, None, :]
    torch.testing.assert_close(ours(scores, padded), torchs(scores, padded))
    compare(
        "masked softmax, forward + backward",
        lambda: ours(scores, padded).backward(slope),
        lambda: torchs(scores, padded).backward(slope),
    )
    return losses[0], losses[-1]


if __name__ == "__main__":
    main()
