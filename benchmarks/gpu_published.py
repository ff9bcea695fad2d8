"""Hold the model of the estimates beside published times of public kernels.

    python benchmarks/gpu_published.py            # writes the table into docs/gpu.md
    python benchmarks/gpu_published.py --print    # shows it instead

The times are medians from ``benchmark/data/all_benchmark_data.csv`` of Liger Kernel (BSD-2-Clause,
https://github.com/linkedin/Liger-Kernel, commit ead96b6): Triton kernels that read every operand
once, one program a row, as most kernels here do. The model says bytes over 0.92 of the bandwidth in
the maker's data sheet.
"""

from __future__ import annotations

import re
from pathlib import Path

import click

PAGE = Path(__file__).parents[1] / "docs" / "gpu.md"
TABLE = re.compile(r"(?<=<!-- published:begin -->\n).*?(?=<!-- published:end -->)", re.DOTALL)
# Bytes a second, and the share of them that the estimates take a copy to reach.
BANDWIDTH = {"H100 SXM": 3.35e12, "A100 SXM 80 GB": 2.039e12, "RTX 3090": 0.936e12}
COPY = 0.92
# Kernel, GPU, rows, bytes of an element, tensors read and written, microseconds by row length.
PUBLISHED = (
    ("layer_norm", "H100 SXM", 4096, 4, 2, {1024: 18.8, 4096: 51.0, 8192: 94.8, 16384: 184.8}),
    (
        "add and rms_norm",
        "H100 SXM",
        2048,
        4,
        4,
        {1024: 20.5, 8192: 94.6, 16384: 183.8, 32768: 433.8},
    ),
    ("layer_norm", "A100 SXM 80 GB", 4096, 4, 2, {1024: 30.3, 4096: 88.2, 16384: 322.3}),
    ("rms_norm", "A100 SXM 80 GB", 2048, 2, 2, {4096: 31.1, 16384: 95.3, 32768: 182.2}),
    ("softmax", "RTX 3090", 2048, 4, 2, {512: 13.3, 1024: 21.5, 2048: 41.0, 4096: 79.9}),
    ("softmax", "RTX 3090", 2048, 2, 2, {1024: 13.3, 2048: 22.5, 4096: 41.0}),
    ("sparsemax backward", "RTX 3090", 2048, 4, 3, {4096: 188.4, 8192: 374.8, 32768: 1573.9}),
)


def table() -> str:
    """The table in Markdown."""
    lines = ["| kernel | GPU | shape | type | MB | model, us | published, us | share |"]
    lines.append("|---|---|---|---|---:|---:|---:|---:|")
    for kernel, gpu, rows, item, tensors, times in PUBLISHED:
        for length, measured in times.items():
            nbytes = rows * length * item * tensors
            model = 1e6 * nbytes / (COPY * BANDWIDTH[gpu])
            lines.append(
                f"| {kernel} | {gpu} | {rows}x{length} | {'f32' if item == 4 else 'bf16'} "
                f"| {nbytes / 1e6:.0f} | {model:.1f} | {measured:.1f} | {model / measured:.2f} |"
            )
    return "\n".join(lines) + "\n"


@click.command()
@click.option("--print", "prints", is_flag=True, help="Show the table instead of writing it.")
def main(prints: bool) -> None:
    """Write the table into docs/gpu.md."""
    text = PAGE.read_text(encoding="utf-8")
    if prints:
        click.echo(table())
        return
    if not TABLE.search(text):
        raise click.ClickException(f"{PAGE.name} has no markers for the table")
    PAGE.write_text(TABLE.sub(lambda _: table(), text), encoding="utf-8")


if __name__ == "__main__":
    main()
