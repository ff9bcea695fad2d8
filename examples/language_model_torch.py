"""The loss of a language model: cross entropy of every token, over a vocabulary of any size.

``cross_entropy`` gives the loss of every token and log Σ exp(logits), and its backward reads the
logits once. Where nobody needs the logits afterwards, the gradient may be written over them: the
step at the end holds one array of tokens times vocabulary where torch holds three.
"""

from __future__ import annotations

import torch
from timing import compare

import pullback as pb
import pullback.torch as pt

IGNORED = -100


def make_text(vocabulary: int, count: int, length: int, seed: int = 0):
    """Sentences in which a word mostly has the same successor; the last words are padding."""
    generator = torch.Generator().manual_seed(seed)
    successor = torch.randperm(vocabulary, generator=generator)
    words = torch.empty(count, length + 1, dtype=torch.int64)
    words[:, 0] = torch.randint(0, vocabulary, (count,), generator=generator)
    for k in range(length):
        chance = torch.randint(0, vocabulary, (count,), generator=generator)
        usual = torch.rand(count, generator=generator) < 0.9
        words[:, k + 1] = torch.where(usual, successor[words[:, k]], chance)
    following = words[:, 1:].clone()
    following[:, -3:] = IGNORED
    return words[:, :-1], following


class Model(torch.nn.Module):
    """Every word votes for the next one."""

    def __init__(self, vocabulary: int, width: int) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(vocabulary, width)
        self.out = torch.nn.Linear(width, vocabulary)

    def forward(self, words):
        return self.out(self.embed(words))


def step_of_ours(logits, target, d_loss, scratch):
    """Loss and gradient; the gradient comes to lie where the logits were."""
    scratch.copy_(logits)
    loss, lse = pb.cross_entropy(scratch, target, ignore_index=IGNORED)
    how = {"target": target, "lse": lse, "ignore_index": IGNORED}
    return loss, pb.cross_entropy_backward(d_loss, logits=scratch, **how, out=scratch)


def step_of_torch(logits, target, d_loss):
    logits = logits.detach().requires_grad_()
    loss = torch.nn.functional.cross_entropy(logits, target, ignore_index=IGNORED, reduction="none")
    loss.backward(d_loss)
    return loss.detach(), logits.grad


def main(vocabulary: int = 500, count: int = 64, steps: int = 60) -> tuple[float, float]:
    """Train, print, and return the first and the last loss."""
    torch.manual_seed(0)
    words, following = make_text(vocabulary, count, length=24)
    model = Model(vocabulary, 32)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    losses = []
    for step in range(steps):
        logits = model(words).flatten(0, 1)
        how = {"ignore_index": IGNORED, "label_smoothing": 0.05, "z_loss": 1e-4}
        each, _ = pt.cross_entropy(logits, following.flatten(), **how)
        loss = each.sum() / (following != IGNORED).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if step % 20 == 0 or step == steps - 1:
            print(f"step {step:3d}  loss {loss.item():.4f}")
    tokens, many = 32, 128256
    scores = torch.randn(tokens, many, dtype=torch.bfloat16)
    target = torch.randint(0, many, (tokens,))
    target[0] = IGNORED
    d_loss = torch.full((tokens,), 1 / tokens, dtype=scores.dtype)
    scratch = torch.empty_like(scores)
    compare(
        f"loss and gradient of {tokens} tokens, vocabulary {many}, bfloat16",
        lambda: step_of_ours(scores, target, d_loss, scratch),
        lambda: step_of_torch(scores, target, d_loss),
    )
    return losses[0], losses[-1]


if __name__ == "__main__":
    main()
