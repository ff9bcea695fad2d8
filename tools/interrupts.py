"""Sends Ctrl-C at random moments and looks at what is left.

    python tools/interrupts.py --count 200

Calls on NumPy, PyTorch and JAX arrays are made over and over on several threads, each front end in
a process of its own, and interrupted; then the same calls must give the same bytes as before. So
must files after ``pullback run`` was interrupted: the output is there and right, or not there and
made by another run.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

THREADS = 4
LONGEST_WAIT = 0.05  # seconds before an interrupt, about as long as the calls take
# Results of 32 MB or more are unmapped when they are freed: a thread that still writes is noticed.
LARGE = (64, 1 << 17)
Call = Callable[[], list[bytes]]


def numpy_call() -> Call:
    """Rows shared by threads, rows cut over them in several phases, segments."""
    import pullback as pb

    rng = np.random.default_rng(0)
    x = rng.standard_normal(LARGE).astype(np.float32)
    long = rng.standard_normal((3, 1 << 19)).astype(np.float32)
    products = pb.cumprod(long)
    ids = rng.integers(0, 100, 1 << 14)
    values = rng.standard_normal((1 << 14, 64)).astype(np.float32)

    def call() -> list[bytes]:
        results = [
            pb.softmax(x),
            pb.cumsum(long),
            pb.sum(long),
            pb.cumprod_backward(long, x=long, y=products),
            pb.segment_sum(values, ids, num_segments=100),
        ]
        return [r.tobytes() for r in results]

    return call


def torch_call() -> Call:
    """A forward and its backward."""
    import torch

    import pullback.torch as pt

    x = torch.randn(LARGE, generator=torch.Generator().manual_seed(0))

    def call() -> list[bytes]:
        at = x.detach().requires_grad_()
        y = pt.softmax(at, 1)
        (dx,) = torch.autograd.grad(y, at, at)
        indices = pt.cummax(x[:8], 1)[1]
        return [t.detach().numpy().tobytes() for t in (y, dx, indices)]

    return call


def jax_call() -> Call:
    """A gradient under jit."""
    import jax

    import pullback.jax as pj

    x = jax.random.normal(jax.random.key(0), (64, 1 << 15))

    @jax.jit
    @jax.grad
    def gradient(x: jax.Array) -> jax.Array:
        return (pj.softmax(x) * x).sum() + pj.cumsum(x).max()

    def call() -> list[bytes]:
        return [np.asarray(gradient(x)).tobytes()]

    return call


FRONT_ENDS = {"numpy": numpy_call, "torch": torch_call, "jax": jax_call}


def interrupt_calls(front_end: str, count: int, seed: int) -> str:
    """Interrupt calls of one front end in this process; what happened."""
    import pullback as pb

    pb.set_num_threads(THREADS)
    call = FRONT_ENDS[front_end]()
    expected = call()
    rng = random.Random(seed)
    sent_at = 0.0

    def send(wait: float) -> None:
        nonlocal sent_at
        time.sleep(wait)
        sent_at = time.monotonic()
        os.kill(os.getpid(), signal.SIGINT)

    def interrupted() -> bool:
        """Whether an interrupt arrived: one in a destructor or a callback is only printed."""
        sender = threading.Thread(target=send, args=(rng.uniform(0, LONGEST_WAIT),))
        try:
            sender.start()
            while sender.is_alive() or time.monotonic() < sent_at + 0.5:
                call()
        except KeyboardInterrupt:
            return True
        finally:
            sender.join()
        return False

    arrived, slowest = 0, 0.0
    for _ in range(count):
        try:
            arrived += interrupted()
        except KeyboardInterrupt:  # between the call and the end of the function
            arrived += 1
        slowest = max(slowest, time.monotonic() - sent_at)
        if call() != expected:
            raise SystemExit(f"{front_end}: other bytes after interrupt {arrived} (seed {seed})")
    return f"{front_end}: {arrived} of {count} interrupts arrived, the slowest in {slowest:.2f} s"


def interrupt_runs(count: int, seed: int) -> str:
    """Interrupt ``pullback run`` on files; what happened."""
    rng = random.Random(seed)
    dy = np.random.default_rng(0).standard_normal((2048, 8192)).astype(np.float32)
    command = [sys.executable, "-m", "pullback", "run", "cumsum_backward", "--memory", "300MB"]
    command += ["--dy", "dy.npy", "--out", "dx.npy"]
    stopped = 0
    with tempfile.TemporaryDirectory() as folder:
        where = Path(folder)
        np.save(where / "dy.npy", dy)

        def finish(*more: str) -> bytes:
            subprocess.run([*command, *more], cwd=where, check=True, capture_output=True)
            found = (where / "dx.npy").read_bytes()
            (where / "dx.npy").unlink()
            return found

        start = time.monotonic()
        expected = finish()
        duration = time.monotonic() - start
        for k in range(count):
            process = subprocess.Popen(
                command, cwd=where, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
            )
            try:
                process.wait(rng.uniform(0.2, 1.0) * duration)
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGINT)
            _, said = process.communicate(timeout=120)
            status = process.returncode
            stopped += status != 0
            if status not in (0, 130, -signal.SIGINT) and "KeyboardInterrupt" not in said:
                raise SystemExit(f"run: status {status} after interrupt {k} (seed {seed})\n{said}")
            there = (where / "dx.npy").exists()
            found = (where / "dx.npy").read_bytes() if there else finish("--resume")
            if found != expected:
                raise SystemExit(f"run: another file after interrupt {k} (seed {seed})")
            (where / "dx.npy").unlink(missing_ok=True)
    return f"run: {count} runs, {stopped} stopped by the interrupt"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--count", type=int, default=200, help="interrupts of each kind")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--only", choices=(*FRONT_ENDS, "run"), help="one kind")
    parser.add_argument("--here", action="store_true", help="in this process")
    given = parser.parse_args()
    if given.here:
        print(interrupt_calls(given.only, given.count, given.seed))
        return
    failed = False
    for kind in [given.only] if given.only else [*FRONT_ENDS, "run"]:
        if kind == "run":
            print(interrupt_runs(given.count, given.seed))
            continue
        options = ["--only", kind, "--count", str(given.count), "--seed", str(given.seed)]
        done = subprocess.run([sys.executable, __file__, "--here", *options], check=False)
        if done.returncode:
            print(f"{kind}: ended with {done.returncode} (seed {given.seed})")
            failed = True
    raise SystemExit(failed)


if __name__ == "__main__":
    main()
