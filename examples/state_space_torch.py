"""A diagonal state-space layer: each channel is h[t] = a[t]·h[t−1] + b[t], with gates made from x.

The task is recall: most of the sequence is noise, and at each step the network must output the last
value that came with a mark. The gates have to learn when to hold (a near 1) and when to replace (a
near 0). Written as a loop in torch, every step costs several kernels, forward and backward; here
the whole recurrence is one call.
"""

from __future__ import annotations

import torch
from timing import compare

import pullback.torch as pt


def make_sequences(count: int, length: int, seed: int):
    """(value, mark) at every step, and the value that came with the last mark."""
    generator = torch.Generator().manual_seed(seed)
    value = 2 * torch.rand(count, length, generator=generator) - 1
    mark = torch.rand(count, length, generator=generator) < 0.1
    mark[:, 0] = True
    place = torch.where(mark, torch.arange(length), 0).cummax(dim=1).values
    return torch.stack((value, mark.float()), dim=-1), value.gather(1, place)


def ours(a, b):
    return pt.linear_recurrence(a, b, dim=1)


def torchs(a, b):
    """One step after the other."""
    state, states = torch.zeros_like(b[:, 0]), []
    for factor, added in zip(a.unbind(1), b.unbind(1), strict=True):
        state = factor * state + added
        states.append(state)
    return torch.stack(states, dim=1)


class StateSpace(torch.nn.Module):
    """Gates and inputs from x, the recurrence, and a mixture of the channels."""

    def __init__(self, features: int, channels: int) -> None:
        super().__init__()
        self.gate = torch.nn.Linear(features, channels)
        self.value = torch.nn.Linear(features, channels)
        self.mix = torch.nn.Linear(channels, 1)

    def forward(self, x, recurrence):
        a = torch.sigmoid(self.gate(x))
        return self.mix(recurrence(a, (1 - a) * self.value(x)))[..., 0]


def main(
    count: int = 16, length: int = 1024, channels: int = 32, steps: int = 80
) -> tuple[float, float]:
    """Train, print, and return the first and the last loss."""
    torch.manual_seed(0)
    model = StateSpace(2, channels)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)

    def train(x, wanted, recurrence):
        loss = (model(x, recurrence) - wanted).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    losses = []
    for step in range(steps):
        losses.append(train(*make_sequences(count, length, step), ours))
        if step % 20 == 0 or step == steps - 1:
            print(f"step {step:3d}  loss {losses[-1]:.4f}")
    x, wanted = make_sequences(count, length, 0)
    a, b = torch.sigmoid(model.gate(x)), model.value(x)
    torch.testing.assert_close(ours(a, b), torchs(a, b), rtol=1e-4, atol=1e-4)
    compare(
        f"a step of training on {count} sequences of {length}",
        lambda: train(x, wanted, ours),
        lambda: train(x, wanted, torchs),
        "a loop in torch",
    )
    return losses[0], losses[-1]


if __name__ == "__main__":
    main()
