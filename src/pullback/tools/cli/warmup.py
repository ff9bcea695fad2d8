"""``pullback warmup``."""

from __future__ import annotations

import time

import click

from ...core.catalog import catalog
from ...core.elements import FLOATS
from ..bench import named_ops
from ..bench.warm import LAYOUTS, cached_kernels, warm_cases, warm_up
from .output import console, steps
from .parameters import DTYPE_LIST, OP, ListOf

EPILOG = """
\b
Examples:
  pullback warmup                                  all ops, f32
  pullback warmup softmax cumsum --dtypes f32,bf16
  pullback warmup --direction backward --dtypes all --layouts last,first,long
"""


@click.command("warmup", epilog=EPILOG)
@click.argument("ops", nargs=-1, type=OP)
@click.option("--dtypes", type=ListOf("dtypes", str.strip, (*FLOATS, "all")), default="f32",
              show_default=True, help="For example f32,bf16, or all.")  # fmt: skip
@click.option("--direction", type=click.Choice(["backward", "forward", "both"]), default="both",
              show_default=True)  # fmt: skip
@click.option("--layouts", type=ListOf("layouts", str.strip, tuple(LAYOUTS)), default="last,first",
              show_default=True, help=f"From {', '.join(LAYOUTS)}.")  # fmt: skip
@click.option("--all-ties", is_flag=True, help="Every ties policy, not only the default one.")
def command(
    ops: tuple[str, ...],
    dtypes: tuple[str, ...],
    direction: str,
    layouts: tuple[str, ...],
    all_ties: bool,
) -> None:
    """Compile the kernels of OPS into the cache on disk."""
    unknown = [n for n in layouts if n not in LAYOUTS]
    if unknown:
        raise click.ClickException(f"unknown layout {unknown[0]!r}; one of {', '.join(LAYOUTS)}")
    named = [n for n in dtypes if n != "all"]
    elements = DTYPE_LIST.convert(",".join(named), None, None) if named else ()
    if len(named) < len(dtypes):
        elements = FLOATS
    chosen = named_ops(ops, direction) if ops else [
        op for op in catalog() if direction in ("both", op.direction)
    ]  # fmt: skip
    cases = list(warm_cases(chosen, elements, layouts, all_ties))
    start = time.perf_counter()
    with steps(len(cases)) as (progress, task):
        for case in cases:
            progress.update(task, description=f"{case.op.name} {case.element}")
            warm_up(case)
            progress.advance(task)
    seconds, kernels = time.perf_counter() - start, cached_kernels()
    kept = "no folder to keep kernels in" if kernels is None else f"{kernels} kernels in the cache"
    console().print(f"{len(cases)} problems run in {seconds:.1f} s; {kept}")
