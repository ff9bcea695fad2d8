"""Which of torch's registered ops may be captured into a CUDA graph: those that never wait."""

from __future__ import annotations

import itertools

import pytest

import pullback as pb
from cells import OPS
from pullback.core.declare import Role
from pullback.tools.case import Case, cuts

pytest.importorskip("torch")
pytest.importorskip("triton")

import torch

import pullback.torch as pt
from pullback.gpu.backend import SegmentRunner
from pullback.gpu.device import Device
from pullback.torch.operations import kind_of

UNSAFE = torch.Tag.cudagraph_unsafe
HERE = Device("cpu", "interpreter", "interpreter")
KINDS = sorted({op.kind for op in OPS.values() if op.direction == "forward"})


def registered(kind: str, given: tuple[str, ...]):
    """Both directions of a kind with what may be left out, as torch's library has them."""
    made = kind_of(kind).operation(given, ())
    return [
        (form, found)
        for form, found in (
            (made.forward, made._registered),
            (made.backward, made._registered_backward),
        )
        if form is not None
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_ops_are_tagged_where_a_call_on_a_gpu_waits(kind):
    """For every way to be told of ids, what the tag says is what the GPU backend does."""
    op = OPS[kind]
    if not cuts(op):
        for _, found in registered(kind, kind_of(kind).usual):
            assert UNSAFE not in found.usual.tags
            assert found.unchecked is None
        return
    by_ids, by_offsets = (
        [o.name for o in cuts(op) if o.role is r] for r in (Role.IDS, Role.OFFSETS)
    )
    for by in (*by_ids, *by_offsets):
        for form, found in registered(kind, (by,)):
            for policy, is_sorted in itertools.product(("raise", "drop"), (False, True)):
                case = Case.of(form.op, "f32", (8, 2), (by,), 3, is_sorted, out_of_range=policy)
                waits = SegmentRunner(case.problem, HERE)._found is not None
                told = {"out_of_range": policy, "sorted": is_sorted, "num_segments": 3}
                params = tuple(told.get(p.name, p.default) for p in form.parameters)
                assert (UNSAFE in found.chosen(params).tags) == waits, (form.op.name, by, told)


def test_a_compiled_graph_has_the_tags():
    """What inductor looks for, forward and backward, in the graphs it would be given."""
    from torch._inductor.utils import is_cudagraph_unsafe_fx_node

    ids, seen = torch.tensor([0, 2, 1, 0]), []

    def note(graph, _):
        calls = [n for n in graph.graph.nodes if "pullback" in str(n.target)]
        seen.extend(is_cudagraph_unsafe_fx_node(n) for n in calls)
        return graph

    from functorch.compile import aot_module_simplified, make_boxed_func

    def backend(graph, given):
        def compiler(part, inputs):
            note(part, inputs)
            return make_boxed_func(part.forward)

        return aot_module_simplified(graph, given, fw_compiler=compiler)

    for policy in ("raise", "drop"):
        torch._dynamo.reset()
        seen.clear()
        x = torch.rand(4, 2, requires_grad=True)

        def total(x, policy=policy):
            return pt.segment_sum(x, ids, 3, out_of_range=policy).square().sum()

        torch.compile(total, backend=backend, fullgraph=True)(x).backward()
        assert seen == [policy == "raise"] * 2
        exact = pt.segment_sum(x.detach(), ids, 3)[ids] * 2
        assert torch.equal(x.grad, exact)


def test_dropped_rows_are_dropped_by_the_op_without_checks():
    x = torch.arange(6.0).reshape(3, 2)
    ids = torch.tensor([1, 7, 1])
    (_, found), *_ = registered("segment_sum", ("segment_ids",))
    result = found.unchecked(x, ids, 2, False, "drop")
    assert torch.equal(result, torch.tensor([[0.0, 0.0], [4.0, 6.0]]))
    with pytest.raises(pb.InvalidProblemError, match="got 7"):
        found.usual(x, ids, 2, False, "raise")
