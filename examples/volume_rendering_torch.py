"""Volume rendering: the weight of a sample is its opacity times the light that reaches it.

What reaches sample i is the product of (1 - opacity) before it: an exclusive cumprod along each
ray. Each ray ends on the ground, an opaque sample: its opacity of exactly 1 makes a zero in the
product, where a backward that divides by the factors, or takes their logarithm, breaks.
"""

from __future__ import annotations

import torch
from timing import compare

import pullback.torch as pt

GROUND = 3.5


def render(density, color, light):
    """Color of each ray from the density and color of its samples; ``light`` reaches a sample."""
    opacity = 1 - torch.exp(-density)
    weight = opacity * light(1 - opacity)
    return (weight[..., None] * color).sum(dim=1)


def ours(clear):
    return pt.cumprod(clear, dim=1, exclusive=True)


def torchs(clear):
    return torch.cat((torch.ones_like(clear[:, :1]), clear[:, :-1].cumprod(dim=1)), dim=1)


def by_logarithms(clear):
    """The usual way around a cumprod."""
    logs = clear.log()
    return torch.exp(logs.cumsum(dim=1) - logs)


def onto_ground(density, depth):
    """Infinitely dense from the ground on."""
    return density.masked_fill(depth >= GROUND, float("inf"))


def make_rays(rays: int, samples: int, seed: int = 0):
    """Places along rays through a blue sheet and a red ball onto green ground, with the picture."""
    generator = torch.Generator().manual_seed(seed)
    offset = 2 * torch.rand(rays, 1, generator=generator) - 1
    depth = torch.linspace(0, 4, samples).expand(rays, samples)
    ball = torch.exp(-8 * ((depth - 2.5).square() + offset.square() - 0.3).clamp(min=0))
    sheet = torch.exp(-40 * (depth - 1).square())
    density = onto_ground(3 * ball + 0.5 * sheet, depth)
    ground = (depth >= GROUND).float()
    colors = torch.stack((ball, ground, sheet), dim=-1)
    color = colors / colors.sum(-1, keepdim=True).clamp(min=1e-6)
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

    def fit(light):
        out = field(place)
        density = onto_ground(torch.nn.functional.softplus(out[..., 0]), place[..., 1])
        loss = (render(density, out[..., 1:].sigmoid(), light) - picture).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    losses = []
    for step in range(steps):
        losses.append(fit(ours))
        if step % 15 == 0 or step == steps - 1:
            print(f"step {step:3d}  loss {losses[-1]:.4f}")
    clear = torch.rand(rays * 8, samples)
    clear[:, samples // 2] = 0.0
    for name, light in (("pullback", ours), ("torch", torchs), ("logarithms", by_logarithms)):
        leaf = clear.clone().requires_grad_()
        (light(leaf) * clear.cos()).sum().backward()
        print(f"gradient through an opaque sample, {name}: {leaf.grad.isnan().sum().item()} NaN")
    leaf = clear.requires_grad_()
    compare(
        "light, forward + backward",
        lambda: ours(leaf).sum().backward(),
        lambda: torchs(leaf).sum().backward(),
    )
    compare("a step of fitting", lambda: fit(ours), lambda: fit(torchs))
    return losses[0], losses[-1]


if __name__ == "__main__":
    main()
