"""Volume rendering: the weight of a sample is its opacity times the light that reaches it.

What reaches sample i is the product of (1 - opacity) before it: a cumprod along each ray. Opacities
of exactly 1 make zeros in that product, where a backward that divides by the factors breaks.
"""

from __future__ import annotations

import torch
from timing import compare

import pullback.torch as pt


def render(density, color, cumprod):
    """Color of each ray from the density and color of its samples."""
    opacity = 1 - torch.exp(-density)
    clear = torch.cat((torch.ones_like(opacity[:, :1]), 1 - opacity[:, :-1]), dim=1)
    weight = opacity * cumprod(clear)
    return (weight[..., None] * color).sum(dim=1)


def ours(x):
    return pt.cumprod(x, dim=1)


def torchs(x):
    return torch.cumprod(x, dim=1)


def make_rays(rays: int, samples: int, seed: int = 0):
    """Positions along rays through a soft red ball behind a thin blue sheet, and what they show."""
    generator = torch.Generator().manual_seed(seed)
    offset = 2 * torch.rand(rays, 1, generator=generator) - 1
    depth = torch.linspace(0, 4, samples).expand(rays, samples)
    ball = torch.exp(-8 * ((depth - 2.5).square() + offset.square() - 0.3).clamp(min=0))
    sheet = torch.exp(-40 * (depth - 1).square())
    density = 3 * ball + 0.5 * sheet
    red_and_blue = torch.stack((ball, torch.zeros_like(ball), sheet), dim=-1)
    color = red_and_blue / red_and_blue.sum(-1, keepdim=True).clamp(min=1e-6)
    place = torch.stack((offset.expand(rays, samples), depth), dim=-1)
    return place, render(density, color, torchs)


def main(rays: int = 512, samples: int = 96, steps: int = 60) -> tuple[float, float]:
    """Fit a small field to the picture, print, and return the first and the last loss."""
    torch.manual_seed(0)
    place, picture = make_rays(rays, samples)
    field = torch.nn.Sequential(
        torch.nn.Linear(2, 32), torch.nn.SiLU(), torch.nn.Linear(32, 32), torch.nn.SiLU(),
        torch.nn.Linear(32, 4),
    )  # fmt: skip
    optimizer = torch.optim.Adam(field.parameters(), lr=0.01)
    losses = []
    for step in range(steps):
        out = field(place)
        shown = render(torch.nn.functional.softplus(out[..., 0]), out[..., 1:].sigmoid(), ours)
        loss = (shown - picture).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if step % 15 == 0 or step == steps - 1:
            print(f"step {step:3d}  loss {loss.item():.4f}")
    clear = torch.rand(rays * 8, samples).requires_grad_()
    compare(
        "cumprod, forward + backward",
        lambda: ours(clear).sum().backward(),
        lambda: torchs(clear).sum().backward(),
    )
    return losses[0], losses[-1]


if __name__ == "__main__":
    main()
