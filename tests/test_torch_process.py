"""pullback.torch in worker processes and in several threads at once."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import torch

import pullback as pb
import pullback.torch as pt
from scripts import run_script
from torch_ops import KINDS, SIMPLE, Simple, data

# Large enough that the kernels share their rows among threads.
LARGE = (700, 1200)


# In a process of its own: JAX, which other tests of a worker import, warns of every fork.
WORKERS = """
import torch
from torch.utils.data import DataLoader, Dataset

import pullback.torch as pt


class Gradients(Dataset):
    def __len__(self):
        return 6

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        x = torch.randn(700, 1200, generator=generator).requires_grad_()
        return torch.autograd.grad(pt.softmax(x, 1).square().sum(), x)[0][:2]


items = Gradients()
want = torch.stack([items[k] for k in range(len(items))])
loader = DataLoader(items, batch_size=2, num_workers=2, multiprocessing_context="fork")
print(torch.equal(torch.cat(list(loader)), want))
"""


def test_dataloader_workers():
    """Fork after the pool of threads has been used, which leaves a child without them."""
    flags = ("-W", "error", "-W", "ignore::DeprecationWarning")
    assert run_script(WORKERS, flags=flags).split() == ["True"]


def gradient(simple: Simple, x):
    x = x.detach().requires_grad_()
    return torch.autograd.grad(simple.ours(x).square().sum(), x)[0]


def test_several_threads_at_once():
    kinds = [Simple(k) for k in ("cumprod", "var", "softmax", "cummax", "lerp")]
    inputs = [data(LARGE, seed=k) for k in range(3)]
    want = [[gradient(s, x) for x in inputs] for s in kinds]
    wrong, ready = [], threading.Barrier(4)

    def work(turn):
        ready.wait()
        for k in range(len(kinds)):
            s = (k + turn) % len(kinds)
            for x, expected in zip(inputs, want[s], strict=True):
                if not torch.equal(gradient(kinds[s], x), expected):
                    wrong.append(kinds[s].kind)

    threads = [threading.Thread(target=work, args=(t,)) for t in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


# Three rows, of segment_sum, are one thread's work.
@pytest.mark.parametrize("simple", SIMPLE[:-1], ids=KINDS[:-1])
def test_bytes_do_not_depend_on_threads(simple):
    x = data(LARGE)
    many = simple.ours(x), gradient(simple, x)
    before = pb.get_num_threads()
    pb.set_num_threads(1)
    try:
        one = simple.ours(x), gradient(simple, x)
    finally:
        pb.set_num_threads(before)
    assert all(torch.equal(a, b) for a, b in zip(many, one, strict=True))


@pytest.mark.skipif(
    not Path("/sys/kernel/mm/transparent_hugepage").exists(), reason="a system without large pages"
)
def test_new_memory_is_asked_for_in_large_pages():
    y = pt.softmax(torch.zeros(2048, 4096), 1)
    inside, flags = y.data_ptr() + y.numel() * 2, ""
    found = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        first = line.split(maxsplit=1)[0]
        if "-" in first and not first.endswith(":"):
            low, high = (int(v, 16) for v in first.split("-"))
            found = low <= inside < high
        elif found and first == "VmFlags:":
            flags = line
    assert " hg" in flags


def test_forms_of_an_op_are_compiled_that_nobody_called_before():
    said = run_script("""
        import torch
        import pullback.torch as pt

        def forms(a, b, state):
            y = pt.linear_recurrence(a, b)
            z, final = pt.linear_recurrence(a, b, initial=state, return_final=True)
            return y + pt.linear_recurrence(a, b, initial=state), z, final

        given = torch.rand(3, 8), torch.rand(3, 8), torch.rand(3)
        compiled = torch.compile(forms, fullgraph=True, backend="aot_eager")(*given)
        print(all(map(torch.equal, compiled, forms(*given))))
    """)
    assert said.strip() == "True"


def test_torch_compile_is_not_loaded_before_it_is_used():
    """It takes a second to load; what it is told of functions is what its own decorators say."""
    run_script(
        """
        import sys
        import torch, pullback.torch as pt
        x = torch.ones(2, 3, requires_grad=True)
        pt.softmax(x, 1).sum().backward()
        assert "torch._dynamo" not in sys.modules
        from pullback.torch import graphs
        early = graphs.constant(lambda: 1)
        assert vars(torch.compiler.assume_constant_result(lambda: 1)) == vars(early)
        assert vars(graphs.constant(lambda: 1)) == vars(early)
        """
    )
