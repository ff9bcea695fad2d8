"""A two-layer graph network: every node adds up what its neighbours send, a segment sum over edges.

The sum is taken in the order of the edges whatever the number of threads, so training is
reproducible to the bit. Edges are sorted by their target once, when the graph is made.
"""

from __future__ import annotations

import torch
from timing import compare

import pullback.torch as pt


def make_graph(nodes: int, classes: int, degree: int, seed: int = 0):
    """Nodes in groups that mostly know their own kind: edges by target, features, classes."""
    generator = torch.Generator().manual_seed(seed)
    label = torch.randint(0, classes, (nodes,), generator=generator)
    target = torch.randint(0, nodes, (nodes * degree,), generator=generator).sort().values
    source = torch.randint(0, nodes, (nodes * degree,), generator=generator)
    kin = label[source] == label[target]
    kept = kin | (torch.rand(nodes * degree, generator=generator) < 0.1)
    noise = torch.randn(nodes, classes, generator=generator)
    features = torch.nn.functional.one_hot(label, classes) + 1.5 * noise
    return source[kept], target[kept], features, label


def ours(messages, target, nodes):
    return pt.segment_sum(messages, target, nodes, sorted=True)


def torchs(messages, target, nodes):
    return messages.new_zeros(nodes, messages.shape[1]).index_add(0, target, messages)


class GraphNetwork(torch.nn.Module):
    """Two rounds of messages."""

    def __init__(self, features: int, hidden: int, classes: int) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(
            [torch.nn.Linear(2 * features, hidden), torch.nn.Linear(2 * hidden, classes)]
        )

    def forward(self, x, source, target, segment_sum):
        ones = torch.ones(len(target), 1, dtype=x.dtype)
        count = segment_sum(ones, target, len(x)).clamp(min=1)
        for k, layer in enumerate(self.layers):
            heard = segment_sum(x[source], target, len(x)) / count
            x = layer(torch.cat((x, heard), dim=1))
            x = x.relu() if k == 0 else x
        return x


def main(nodes: int = 20_000, classes: int = 5, steps: int = 40) -> tuple[float, float]:
    """Train, print, and return the first and the last loss."""
    torch.manual_seed(0)
    source, target, features, label = make_graph(nodes, classes, degree=10)
    model = GraphNetwork(classes, 32, classes)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    losses = []
    for step in range(steps):
        out = model(features, source, target, ours)
        loss = torch.nn.functional.cross_entropy(out, label)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if step % 10 == 0 or step == steps - 1:
            right = (out.argmax(1) == label).float().mean().item()
            print(f"step {step:3d}  loss {loss.item():.4f}  right {right:.2f}")
    messages = torch.randn(len(target), 64, requires_grad=True)
    compare(
        "aggregation, forward + backward",
        lambda: ours(messages, target, nodes).sum().backward(),
        lambda: torchs(messages, target, nodes).sum().backward(),
    )
    return losses[0], losses[-1]


if __name__ == "__main__":
    main()
