"""Write the tables of docs/speed.md from reports of ``pullback bench``, and their short form.

They go between ``<!-- speed:begin -->`` and ``<!-- speed:end -->``. The machine is named by its CPU
model and its number of cores. The first report is of ``pullback bench --full --json FILE``; a
second one, of ``pullback bench --frontends --json FILE``, adds the table of the frameworks.

Usage: python tools/speed_table.py REPORT.json [FRONTENDS.json] [PAGE.md]
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import speed_short
from pullback.tools.bench.summary import Figures, figures, geometric_mean, key_of, summarise

BEGIN, END = "<!-- speed:begin -->", "<!-- speed:end -->"
PEERS = {
    "torch": "PyTorch",
    "compile": "torch.compile",
    "jax": "JAX jit",
    "numpy": "NumPy",
}
SHAPE = "4096x4096"
Cell = Mapping[str, Any]


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    rule = ["---", *["---:"] * (len(header) - 1)]
    return "\n".join(f"| {' | '.join(row)} |" for row in (header, rule, *rows))


def percent(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.0f} %"


def times(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.0f}×" if value >= 10 else f"{value:.2g}×"


def by_op(cells: Sequence[Cell], peers: Sequence[str]) -> str:
    """One line per op: f32 on the usual matrix, last axis beside first axis."""
    found: dict[str, dict[str, Figures]] = {}
    for cell in cells:
        numbers = figures(cell)
        usual = cell["shape"] == SHAPE or cell["family"] == "segment"
        if numbers is None or cell["dtype"] != "f32" or not usual:
            continue
        name = cell["op"]
        if cell["family"] == "segment":
            name += f" {cell['shape']}"
        found.setdefault(name, {})[cell["axis"]] = numbers

    def row(name: str, axes: Mapping[str, Figures]) -> list[str]:
        last = axes.get("-1") or axes.get("-")
        first = axes.get("0")
        if last is None:
            return []
        ratios = [times(last.ratios.get(p)) for p in peers]
        other = [percent(first.of_copy), times(first.against_fastest)] if first else ["", ""]
        return [f"`{name}`", f"{last.ms:.3g}", percent(last.of_copy), *ratios, *other]

    header = ["op, f32", "ms", "of copy", *(f"× {PEERS[p]}" for p in peers)]
    header += ["first axis: of copy", "× fastest"]
    return table(header, filter(None, (row(n, a) for n, a in found.items())))


def by_shape(cells: Sequence[Cell]) -> str:
    """Geometric means over the ops by shape and dtype: share of a copy, ratio to the fastest."""
    dtypes = list(dict.fromkeys(c["dtype"] for c in cells))
    places = list(dict.fromkeys((c["shape"], c["axis"]) for c in cells if c["axis"] != "-"))

    def row(shape: str, axis: str) -> list[str]:
        made = [f"{shape}, axis {axis}"]
        for dtype in dtypes:
            here = [
                f
                for c in cells
                if (c["shape"], c["axis"], c["dtype"]) == (shape, axis, dtype)
                and (f := figures(c)) is not None
            ]
            share = geometric_mean(f.of_copy for f in here)
            ratio = geometric_mean(f.against_fastest for f in here)
            made.append(", ".join(filter(None, (percent(share), times(ratio)))))
        return made

    return table(["shape", *dtypes], (row(*place) for place in places))


def speed(report: Mapping[str, Any]) -> str:
    """The whole section."""
    cells, machine = report["cells"], report["machine"]
    summary = summarise(cells)
    peers = [p for p in PEERS if p in report["settings"]["peers"]]
    libraries = {"compile": "torch"}
    shown = dict.fromkeys(libraries.get(p, p) for p in peers)
    versions = ", ".join(f"{n} {machine['libraries'][n]}" for n in shown)
    lost, tried = summary["lost"], summary["cases"] - len(summary["skipped"])
    backward = [c for c in cells if c["op"].endswith("_backward") or c["family"] == "segment"]
    forward = [c for c in cells if c not in backward]
    parts = [
        f"Measured on {machine['cpu']}, {machine['cores']} cores, {report['settings']['threads']} "
        f"threads; {versions}. Every case is checked before it is timed, in turns with a copy of "
        "the same number of bytes and with the peers. Into the caller's buffer; × is the peer's "
        f"time over pullback's. Backward, {SHAPE.replace('x', '×')}, last axis:",
        by_op(backward, peers),
        "Geometric means over the ops, as a share of the copy and against the fastest of the "
        "peers, by shape and element type:",
        by_shape(backward),
        *(["The same of forward ops:", by_shape(forward)] if forward else []),
        *_sizes(summary["by_size"]),
        f"Over all {tried} cases: {percent(summary['of_copy'])} of copy bandwidth, "
        f"{times(summary['against_fastest'])} the speed of the fastest peer "
        f"({times(summary['function_against_fastest'])} when the result is allocated too). "
        + _losses(cells, lost),
    ]
    return "\n\n".join(parts)


def by_frontend(rows: Sequence[Mapping[str, Any]]) -> str:
    """Forward and backward through each framework, ours beside its own."""
    places = list(dict.fromkeys((r["frontend"], r["shape"]) for r in rows))
    found = {(r["op"], r["frontend"], r["shape"]): r for r in rows}

    def cell(op: str, frontend: str, shape: str) -> str:
        r = found.get((op, frontend, shape))
        return "" if r is None else f"{r['ms']:.3g} ms, {times(r['own_ms'] / r['ms'])}"

    ops = dict.fromkeys(r["op"] for r in rows)
    header = ["op, f32", *(f"{PEERS[f]}, {shape.replace('x', '×')}" for f, shape in places)]
    ratios: dict[tuple[str, str], list[float]] = {place: [] for place in places}
    for r in rows:
        ratios[r["frontend"], r["shape"]].append(r["own_ms"] / r["ms"])
    means = [times(geometric_mean(ratios[place])) for place in places]
    body = [[f"`{op}`", *(cell(op, *place) for place in places)] for op in ops]
    return table(header, [*body, ["geometric mean", *means]])


def frontends(report: Mapping[str, Any]) -> str:
    """The section on the frameworks."""
    return (
        "Forward and backward through a framework's autograd, `pullback.torch` and `pullback.jax` "
        "beside the framework's own function (its time over ours):\n\n"
        + by_frontend(report["frontends"])
    )


def _sizes(means: Mapping[str, float]) -> list[str]:
    said = [f"{times(ratio)} {where}" for where, ratio in means.items()]
    where = "the last-level cache"
    return [f"Against the fastest peer by size, of {where}: {', '.join(said)}."] if said else []


def _losses(cells: Sequence[Cell], lost: Sequence[str]) -> str:
    if not lost:
        return "No case is slower than its fastest peer."
    ratios = {" ".join(key_of(c)): f.against_fastest for c in cells if (f := figures(c))}
    named = ", ".join(f"{name} ({times(ratios[name])})" for name in lost)
    return f"Slower than the fastest peer in {len(lost)}: {named}."


def main(arguments: Sequence[str]) -> int:
    pages = [a for a in arguments if a.endswith(".md")]
    reports = [
        json.loads(Path(a).read_text(encoding="utf-8")) for a in arguments if not a.endswith(".md")
    ]
    if not reports:
        print(__doc__, file=sys.stderr)
        return 2
    page = Path(pages[0]) if pages else speed_short.PAGE
    text = page.read_text(encoding="utf-8")
    head, begin, rest = text.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end:
        print(f"{page}: no {BEGIN} and {END}", file=sys.stderr)
        return 1
    made = "\n\n".join(frontends(r) if "frontends" in r else speed(r) for r in reports)
    page.write_text(f"{head}{begin}\n\n{made}\n\n{end}{tail}", encoding="utf-8")
    if page == speed_short.PAGE:
        for path, short in speed_short.made().items():
            path.write_text(short, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
