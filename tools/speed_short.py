"""The short form of docs/speed.md: a table for README.md and a picture.

The table stands between ``<!-- short:begin -->`` and ``<!-- short:end -->``. Both are taken from
the long tables as they are written there, so no report is needed.

Usage: python tools/speed_short.py [--check]
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Iterator
from html import escape
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# The columns at the end of the table by op.
FIRST_AXIS = ("first axis: of copy", "× fastest")
README, PAGE = ROOT / "README.md", ROOT / "docs" / "speed.md"
PICTURE = ROOT / "docs" / "_static" / "speed.svg"
BEGIN, END = "<!-- short:begin -->", "<!-- short:end -->"
# One op of each kind of loop.
SHOWN = (
    "cumsum_backward",
    "cumprod_backward",
    "logcumsumexp_backward",
    "max_backward",
    "var_backward",
    "softmax_backward",
    "segment_sum",
)


def rows(text: str, first: str) -> list[list[str]]:
    """The cells of the table whose first column has that title, header first; [] without it."""
    at = text.find(f"| {first} |")
    if at < 0:
        return []
    lines = text[at:].partition("\n\n")[0].splitlines()
    cells = [[c.strip() for c in line.strip().strip("|").split("|")] for line in lines]
    return [cells[0], *cells[2:]]


def ratio(cell: str) -> float | None:
    return float(cell.removesuffix("×")) if cell.endswith("×") else None


def short(text: str) -> str:
    """A few lines of the table by op, and what holds over all cases."""
    header, *body = rows(text, "op, f32")
    header = header[: len(header) - len(FIRST_AXIS)]
    body += rows(text, "segment op, f32")[1:]
    kept = [row for name in SHOWN for row in body if row[0].strip("`").partition(" ")[0] == name]
    rule = ["---", *["---:"] * (len(header) - 1)]
    lines = [f"| {' | '.join(row[: len(header)])} |" for row in (header, rule, *kept)]
    machine = re.search(r"Measured on (.*?)\. Every case", text)
    over_all = re.search(r"Over all .*?(in \d+(?=:)|No case .*?(?=\.))", text)
    assert machine, "docs/speed.md does not say where it was measured"
    assert over_all, "docs/speed.md does not say what holds over all cases"
    means = re.search(r"\| geometric mean \|(.*)\|", text)
    elsewhere = ""
    if means and (where := _machine(text[: means.start()])) != machine[1].partition(";")[0]:
        elsewhere = f" (on {where}, in an earlier run)"
    parts = [
        f"Backward passes into the caller's buffer, 4096×4096 float32, last axis, on {machine[1]}. "
        "× is the peer's time over pullback's: above 1, pullback is faster.",
        "\n".join(lines),
        f"{over_all[0]}; [all of them](docs/speed.md).",
    ]
    if means:
        big, small, jax_big, jax_small = (c.strip() for c in means[1].split("|"))
        parts.append(
            f"Forward and backward together through autograd, geometric mean over the ops: at "
            f"4096×4096 {big} the speed of PyTorch's own functions and {jax_big} that of JAX's "
            f"under jit; at 1×128, where a call is all overhead, {small} and "
            f"{jax_small}{elsewhere}."
        )
    return "\n\n".join(parts)


def _machine(text: str) -> str:
    """The machine that is named last."""
    named: list[str] = re.findall(r"Measured on (.*?)[;.] ", text)
    return named[-1]


STYLE = """
  text { font: 13px system-ui, sans-serif; fill: #24292f; }
  .name { font-family: ui-monospace, monospace; text-anchor: end; }
  .tick { text-anchor: middle; }
  .small { font-size: 11px; fill: #57606a; }
  .bar { fill: #2f6f9f; } .lost { fill: #b4532a; } .rule { stroke: #8c959f; stroke-opacity: 0.4; }
  @media (prefers-color-scheme: dark) {
    text { fill: #d7dde3; } .small { fill: #9aa4ae; }
    .bar { fill: #5fa3d3; } .lost { fill: #e08a5e; } .rule { stroke: #6e7781; }
  }
"""
LEFT, WIDE, STEP, TOP = 190, 430, 22, 62
TICKS = (0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200)


def fastest(text: str) -> Iterator[tuple[str, float]]:
    """Each op of the large table with the ratio to the fastest of its peers on the last axis."""
    header, *body = rows(text, "op, f32")
    peers = range(3, len(header) - len(FIRST_AXIS))
    for row in body:
        ratios = [r for k in peers if (r := ratio(row[k])) is not None]
        if ratios and "x" not in row[0].partition(" ")[2]:
            yield row[0].strip("`").removesuffix("_backward"), min(ratios)


def peers_of(text: str) -> str:
    """Whom the table by op compares with."""
    *others, last = [t.removeprefix("× ") for t in rows(text, "op, f32")[0][3 : -len(FIRST_AXIS)]]
    return f"{', '.join(others)} and {last}" if others else last


def picture(text: str) -> str:
    """Bars against the fastest peer, from 1 on a logarithmic scale: a loss goes to the left."""
    bars = list(fastest(text))
    machine = re.search(r"Measured on (.*?)\. Every case", text)
    assert machine, "docs/speed.md does not say where it was measured"
    height = TOP + STEP * len(bars) + 26
    low = min(1.0, *(r for _, r in bars))
    high = max(2.0, *(r for _, r in bars))

    def at(value: float) -> float:
        return LEFT + WIDE * math.log(value / low) / math.log(high / low)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {LEFT + WIDE + 60} {height}" '
        f'role="img" aria-label="Speed of backward passes against the fastest peer">',
        f"<style>{STYLE}</style>",
        f'<text x="12" y="22">Backward passes: speed against the fastest of '
        f"{escape(peers_of(text))}</text>",
        f'<text class="small" x="12" y="42">4096×4096 float32, last axis, logarithmic scale; '
        f"{escape(machine[1].partition(';')[0])}</text>",
    ]
    for tick in (t for t in TICKS if low <= t <= high):
        parts += [
            f'<line class="rule" x1="{at(tick):.1f}" x2="{at(tick):.1f}" y1="{TOP - 6}" '
            f'y2="{height - 22}"/>',
            f'<text class="small tick" x="{at(tick):.1f}" y="{height - 8}">{tick:g}×</text>',
        ]
    for k, (name, value) in enumerate(bars):
        y = TOP + STEP * k
        kind = "bar" if value >= 1 else "bar lost"
        ends = sorted((at(1.0), at(value)))
        parts += [
            f'<text class="name" x="{LEFT - 8}" y="{y + 12}">{escape(name)}</text>',
            f'<rect class="{kind}" x="{ends[0]:.1f}" y="{y}" width="{ends[1] - ends[0]:.1f}" '
            'height="16"/>',
            f'<text class="small" x="{ends[1] + 6:.1f}" y="{y + 12}">{value:.2g}×</text>',
        ]
    return "\n".join([*parts, "</svg>"]) + "\n"


def made() -> dict[Path, str]:
    """What the files should hold."""
    text, readme = PAGE.read_text(encoding="utf-8"), README.read_text(encoding="utf-8")
    head, _, rest = readme.partition(BEGIN)
    tail = rest.partition(END)[2]
    return {README: f"{head}{BEGIN}\n\n{short(text)}\n\n{END}{tail}", PICTURE: picture(text)}


def main() -> int:
    stale = [p for p, t in made().items() if not p.exists() or p.read_text(encoding="utf-8") != t]
    if "--check" in sys.argv[1:]:
        if stale:
            names = ", ".join(p.name for p in stale)
            print(f"out of date: {names}; run python tools/speed_short.py", file=sys.stderr)
        return bool(stale)
    for path, text in made().items():
        path.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
