"""Volume rendering: voxels of density and color, fitted to a picture from each of the six sides.

The weight of a voxel in a picture is its opacity times the light that reaches it, the product of
(1 - opacity) over the voxels in front of it: an exclusive cumprod along the line of sight. The
ground is opaque: its opacity of exactly 1 makes a zero in the product, where a backward that
divides by the factors, or takes their logarithm, breaks.
"""

from __future__ import annotations

import torch
from timing import compare

import pullback.torch as pt

SIDES = [(dim, from_far_end) for dim in range(3) for from_far_end in (False, True)]


def ours(clear, dim, from_far_end):
    return pt.cumprod(clear, dim=dim, exclusive=True, reverse=from_far_end)


def torchs(clear, dim, from_far_end):
    if from_far_end:
        return torchs(clear.flip(dim), dim, False).flip(dim)
    nearest, others = torch.ones_like(clear.narrow(dim, 0, 1)), clear.shape[dim] - 1
    return torch.cat((nearest, clear.narrow(dim, 0, others).cumprod(dim)), dim)


def by_logarithms(clear, dim, from_far_end):
    """The usual way around a cumprod."""
    logs = clear.log()
    if from_far_end:
        return torch.exp(logs.flip(dim).cumsum(dim).flip(dim) - logs)
    return torch.exp(logs.cumsum(dim) - logs)


def render(density, color, light):
    """A picture from each side; ``light`` says how much of it reaches a voxel."""
    clear = torch.exp(-density)
    opacity = 1 - clear
    weights = (opacity * light(clear, *side) for side in SIDES)
    return [(w * color).sum(dim + 1) for w, (dim, _) in zip(weights, SIDES, strict=True)]


def onto_ground(density):
    """Infinitely dense in the lowest layer."""
    layers = torch.arange(len(density)).reshape(-1, 1, 1)
    return density.masked_fill(layers == 0, float("inf"))


def make_scene(size: int):
    """A red ball in blue haze above green ground."""
    at = torch.linspace(-1, 1, size)
    height, left, front = torch.meshgrid(at, at, at, indexing="ij")
    ball = (height.square() + left.square() + front.square() < 0.3).float()
    haze = 0.2 * torch.exp(-4 * (height + 0.5).square())
    ground = torch.zeros_like(ball)
    ground[0] = 1.0
    color = torch.stack((ball, ground, (1 - ball) * (1 - ground)))
    return onto_ground(16 / size * (8 * ball + haze)), color


def main(size: int = 96, steps: int = 30) -> tuple[float, float]:
    """Fit voxels to the pictures, print, and return the first and the last loss."""
    pictures = render(*make_scene(size), torchs)
    density = torch.full((size, size, size), -4.0, requires_grad=True)
    color = torch.zeros((3, size, size, size), requires_grad=True)
    optimizer = torch.optim.Adam([density, color], lr=0.1)

    def fit(light):
        found = render(onto_ground(density.exp()), color.sigmoid(), light)
        parts = zip(found, pictures, strict=True)
        loss = sum((mine - theirs).square().mean() for mine, theirs in parts)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    losses = []
    for step in range(steps):
        losses.append(fit(ours))
        if step % 10 == 0 or step == steps - 1:
            print(f"step {step:3d}  loss {losses[-1]:.4f}")
    clear = torch.exp(-make_scene(size)[0]).requires_grad_()
    for name, light in (("pullback", ours), ("torch", torchs), ("logarithms", by_logarithms)):
        (slope,) = torch.autograd.grad(light(clear, *SIDES[0]).sum(), clear)
        print(f"gradient through opaque ground, {name}: {slope.isnan().sum().item()} NaN")
    for side in (SIDES[0], SIDES[-1]):
        compare(
            f"light along axis {side[0]}, forward + backward",
            lambda side=side: torch.autograd.grad(ours(clear, *side).sum(), clear),
            lambda side=side: torch.autograd.grad(torchs(clear, *side).sum(), clear),
        )
    compare("a step of fitting", lambda: fit(ours), lambda: fit(torchs))
    return losses[0], losses[-1]


if __name__ == "__main__":
    main()
