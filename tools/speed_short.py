"""The short form of docs/speed.md: a table for README.md and a picture.

The table stands between ``<!-- short:begin -->`` and ``<!-- short:end -->``. Both are taken from
the long tables as they are written there, so no report is needed.

Usage: python tools/speed_short.py [--check]
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from html import escape
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
README, PAGE = ROOT / "README.md", ROOT / "docs" / "speed.md"
PICTURE = ROOT / "docs" / "_static" / "speed.svg"
BEGIN, END = "<!-- short:begin -->", "<!-- short:end -->"
# One op of each kind of loop, and the case that is lost.
SHOWN = (
    "cumsum_backward",
    "cumprod_backward",
    "logcumsumexp_backward",
    "max_backward",
    "var_backward",
    "softmax_backward",
    "segment_sum 262144x64->10000 sorted",
    "segment_sum 262144x64->10000 random",
)
COLUMNS = slice(0, -2)


def rows(text: str, first: str) -> list[list[str]]:
    """The cells of the table whose first column has that title, its header first."""
    lines = text[text.index(f"| {first} |") :].partition("\n\n")[0].splitlines()
    cells = [[c.strip() for c in line.strip().strip("|").split("|")] for line in lines]
    return [cells[0], *cells[2:]]


def ratio(cell: str) -> float | None:
    return float(cell.removesuffix("×")) if cell.endswith("×") else None


def short(text: str) -> str:
    """A few lines of the table by op, and what holds over all cases."""
    header, *body = rows(text, "op, f32")
    found = {row[0].strip("`"): row for row in body}
    kept = [found[name] for name in SHOWN if name in found]
    rule = ["---", *["---:"] * (len(header) - 1)]
    lines = [f"| {' | '.join(row[COLUMNS])} |" for row in (header, rule, *kept)]
    machine = re.search(r"Measured on (.*?)\. Every case", text)
    over_all = re.search(r"Over all .*?(in \d+(?=:)|No case .*?(?=\.))", text)
    assert machine, "docs/speed.md does not say where it was measured"
    assert over_all, "docs/speed.md does not say what holds over all cases"
    means = re.search(r"\| geometric mean \|(.*)\|", text)
    parts = [
        f"Backward into the caller's buffer, 4096×4096, last axis, f32; {machine[1]}. × is the "
        "peer's time over pullback's, above 1 pullback is faster:",
        "\n".join(lines),
        f"{over_all[0]}; [all of them](docs/speed.md).",
    ]
    if means:
        big, small, jax_big, jax_small = (c.strip() for c in means[1].split("|"))
        parts.append(
            f"Through autograd, forward and backward together, in the geometric mean over the ops: "
            f"{big} PyTorch's own functions and {jax_big} JAX's under jit at 4096×4096; at 1×128, "
            f"where a call is all overhead, {small} and {jax_small}."
        )
    return "\n\n".join(parts)


STYLE = """
  text { font: 13px system-ui, sans-serif; fill: #24292f; }
  .name { font-family: ui-monospace, monospace; text-anchor: end; }
  .small { font-size: 11px; fill: #57606a; }
  .bar { fill: #2f6f9f; } .lost { fill: #b4532a; } .rule { stroke: #8c959f; }
  @media (prefers-color-scheme: dark) {
    text { fill: #d7dde3; } .small { fill: #9aa4ae; }
    .bar { fill: #5fa3d3; } .lost { fill: #e08a5e; } .rule { stroke: #6e7781; }
  }
"""
LEFT, WIDE, STEP, TOP = 190, 430, 22, 62


def fastest(text: str) -> Iterator[tuple[str, float]]:
    """Each op of the large table with the ratio to the fastest of its peers on the last axis."""
    header, *body = rows(text, "op, f32")
    peers = range(3, len(header) - 2)
    for row in body:
        ratios = [r for k in peers if (r := ratio(row[k])) is not None]
        if ratios and "x" not in row[0].partition(" ")[2]:
            yield row[0].strip("`").removesuffix("_backward"), min(ratios)


def peers_of(text: str) -> str:
    """Whom the table by op compares with."""
    *others, last = [t.removeprefix("× ") for t in rows(text, "op, f32")[0][3:-2]]
    return f"{', '.join(others)} and {last}" if others else last


def picture(text: str) -> str:
    """Bars against the fastest peer."""
    bars = list(fastest(text))
    most = max(r for _, r in bars)
    machine = re.search(r"Measured on (.*?)\. Every case", text)
    assert machine, "docs/speed.md does not say where it was measured"
    height = TOP + STEP * len(bars) + 14
    one = LEFT + WIDE / most
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {LEFT + WIDE + 60} {height}" '
        f'role="img" aria-label="Speed of backward passes against the fastest peer">',
        f"<style>{STYLE}</style>",
        f'<text x="12" y="22">Backward passes, times as fast as the fastest of '
        f"{escape(peers_of(text))}</text>",
        f'<text class="small" x="12" y="42">4096×4096 float32, last axis; '
        f"{escape(machine[1].partition(';')[0])}</text>",
    ]
    for k, (name, value) in enumerate(bars):
        y = TOP + STEP * k
        kind = "bar" if value >= 1 else "bar lost"
        width = WIDE * value / most
        parts += [
            f'<text class="name" x="{LEFT - 8}" y="{y + 12}">{escape(name)}</text>',
            f'<rect class="{kind}" x="{LEFT}" y="{y}" width="{width:.1f}" height="16"/>',
            f'<text class="small" x="{LEFT + width + 6:.1f}" y="{y + 12}">{value:.2g}×</text>',
        ]
    parts.append(
        f'<line class="rule" x1="{one:.1f}" x2="{one:.1f}" y1="{TOP - 6}" y2="{height - 10}"/>'
    )
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
