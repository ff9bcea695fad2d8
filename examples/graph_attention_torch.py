"""A graph attention layer: each node weighs its neighbours' messages by a softmax over its edges.

The scores of the edges that end in a node form a segment, which may have any length.
``segment_softmax`` computes the softmax of every segment in one call, whatever the order of the
edges. In plain torch it takes a maximum, a gather, a sum and another gather, and autograd keeps the
result of each.
"""

from __future__ import annotations

import torch
from graph_network_torch import make_graph
from timing import compare

import pullback.torch as pt


def ours(scores, target, nodes):
    return pt.segment_softmax(scores, target, nodes)


def torchs(scores, target, nodes):
    """As graph libraries do it, without an epsilon."""
    where = target[:, None].expand_as(scores)
    most = scores.new_zeros(nodes, scores.shape[1])
    most = most.scatter_reduce(0, where, scores.detach(), "amax", include_self=False)
    weight = (scores - most[target]).exp()
    return weight / scores.new_zeros(most.shape).index_add(0, target, weight)[target]


class GraphAttention(torch.nn.Module):
    """One layer with several heads, whose results are averaged."""

    def __init__(self, features: int, classes: int, heads: int) -> None:
        super().__init__()
        self.heads, self.classes = heads, classes
        self.project = torch.nn.Linear(features, heads * classes)
        self.from_source = torch.nn.Parameter(torch.zeros(heads, classes))
        self.from_target = torch.nn.Parameter(torch.zeros(heads, classes))

    def forward(self, x, source, target):
        h = self.project(x).view(len(x), self.heads, self.classes)
        sent, heard = (h * self.from_source).sum(2), (h * self.from_target).sum(2)
        scores = torch.nn.functional.leaky_relu(sent[source] + heard[target], 0.2)
        weight = ours(scores, target, len(x))
        messages = weight[:, :, None] * h[source]
        return pt.segment_sum(messages, target, len(x)).mean(1) + h.mean(1)


def main(
    nodes: int = 2000, classes: int = 5, heads: int = 8, steps: int = 40
) -> tuple[float, float]:
    """Train, print, and return the first and the last loss."""
    torch.manual_seed(0)
    source, target, features, label = make_graph(nodes, classes, degree=10)
    model = GraphAttention(classes, classes, heads)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    losses = []
    for step in range(steps):
        out = model(features, source, target)
        loss = torch.nn.functional.cross_entropy(out, label)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if step % 10 == 0 or step == steps - 1:
            right = (out.argmax(1) == label).float().mean().item()
            print(f"step {step:3d}  loss {loss.item():.4f}  right {right:.2f}")
    edges = torch.randint(0, 5000, (60_000,))
    scores = torch.randn(len(edges), heads, requires_grad=True)
    slope = torch.randn(scores.shape)
    results = [f(scores, edges, 5000) for f in (ours, torchs)]
    torch.testing.assert_close(*results)
    compare(
        "softmax over the edges of 5000 nodes, forward + backward",
        lambda: ours(scores, edges, 5000).backward(slope),
        lambda: torchs(scores, edges, 5000).backward(slope),
    )
    return losses[0], losses[-1]


if __name__ == "__main__":
    main()
