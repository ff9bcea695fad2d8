"""Write the tables of docs/speed.md from reports of ``pullback bench``, and their short form.

They go between ``<!-- speed:begin -->`` and ``<!-- speed:end -->``. The machine is named by its CPU
model and its number of cores. The first report is of ``pullback bench --grid --json FILE``, or of
``--full``; a second one, of ``pullback bench --frontends --json FILE``, adds the table of the
frameworks.

Usage: python tools/speed_table.py REPORT.json [FRONTENDS.json] [PAGE.md]
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import speed_short
from pullback.core.catalog import OPS
from pullback.core.elements import FLOATS
from pullback.tools.bench.summary import Figures, figures, geometric_mean, key_of, summarise
from pullback.tools.cli import tables

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
    return "" if value is None else f"{100 * value:.0f}\u00a0%"  # not to be broken


def times(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.0f}×" if value >= 10 else f"{value:.2g}×"


def in_order(cells: Iterable[Cell]) -> list[Cell]:
    """By the catalog, and of an op the largest first: the grid is measured by size."""
    places = {name: k for k, name in enumerate(OPS)}
    return sorted(cells, key=lambda c: (places.get(c["op"], len(places)), -c["bytes"]))


def by_op(cells: Sequence[Cell], peers: Sequence[str], title: str = "op, f32") -> str:
    """One line per op: f32 on the usual matrix, last axis beside first axis."""
    found: dict[str, dict[str, Figures]] = {}
    for cell in in_order(cells):
        numbers = figures(cell)
        if numbers is None or cell["dtype"] != "f32" or cell["shape"] != SHAPE:
            continue
        found.setdefault(cell["op"], {})[cell["axis"]] = numbers
    peers = _met([f for axes in found.values() for f in axes.values()], peers)

    def row(name: str, axes: Mapping[str, Figures]) -> list[str]:
        last = axes.get("-1") or axes.get("-")
        first = axes.get("0")
        if last is None:
            return []
        other = [percent(first.of_copy), times(first.against_fastest)] if first else ["", ""]
        return [*_times(name, last, peers), *other]

    header = [title, "ms", "of copy", *(f"× {PEERS[p]}" for p in peers)]
    header += ["first axis: of copy", "× fastest"]
    return table(header, filter(None, (row(n, a) for n, a in found.items())))


def by_segment_op(cells: Sequence[Cell], peers: Sequence[str]) -> str:
    """One line per segment op and order of ids: f32, on the largest table of rows that it has."""
    found: dict[tuple[str, str], tuple[str, Figures]] = {}
    for cell in in_order(cells):
        numbers = figures(cell)
        if numbers is None or cell["dtype"] != "f32" or cell["family"] != "segment":
            continue
        order = cell["shape"].partition(" ")[2]
        found.setdefault((cell["op"], order), (cell["shape"], numbers))
    peers = _met([f for _, f in found.values()], peers)
    header = ["segment op, f32", "ms", "of copy", *(f"× {PEERS[p]}" for p in peers)]
    rows = [_times(f"{op} {shape}", f, peers) for (op, _), (shape, f) in found.items()]
    return table(header, rows)


def _met(found: Iterable[Figures], peers: Sequence[str]) -> list[str]:
    """The peers that were measured beside at least one of the cases."""
    met = {p for figures in found for p in figures.ratios}
    return [p for p in peers if p in met]


def _times(name: str, found: Figures, peers: Sequence[str]) -> list[str]:
    ratios = [times(found.ratios.get(p)) for p in peers]
    return [f"`{name}`", f"{found.ms:.3g}", percent(found.of_copy), *ratios]


def by_shape(cells: Sequence[Cell], lost: Iterable[str]) -> str:
    """Geometric means over the ops by shape and dtype: share of a copy, ratio to the fastest."""
    dtypes = [d for d in FLOATS if any(c["dtype"] == d for c in cells)]
    behind = set(lost)
    places = list(dict.fromkeys((c["shape"], c["axis"]) for c in cells if c["axis"] != "-"))

    def row(shape: str, axis: str) -> list[str]:
        made = [f"{shape}, axis {axis}"]
        for dtype in dtypes:
            here = [
                (" ".join(key_of(c)), f)
                for c in cells
                if (c["shape"], c["axis"], c["dtype"]) == (shape, axis, dtype)
                and (f := figures(c)) is not None
            ]
            share = geometric_mean(f.of_copy for _, f in here)
            ratio = geometric_mean(f.against_fastest for _, f in here)
            count = sum(name in behind for name, _ in here)
            slower = f"{count} of {len(here)} slower" if count else ""
            made.append(", ".join(filter(None, (percent(share), times(ratio), slower))))
        return made

    return table(["shape", *dtypes], (row(*place) for place in places))


def speed(report: Mapping[str, Any]) -> str:
    """The whole section."""
    cells, libraries = report["cells"], report["machine"]["libraries"]
    summary = summarise(cells)
    peers = [p for p in PEERS if p in report["settings"]["peers"]]
    shown = dict.fromkeys({"compile": "torch"}.get(p, p) for p in peers)
    versions = ", ".join(f"{n} {libraries[n]}" for n in shown)
    lost, tried = summary["lost"], summary["cases"] - len(summary["skipped"])
    arrays = [c for c in cells if c["family"] != "segment"]
    backward = [c for c in arrays if c["op"].endswith("_backward")]
    forward = [c for c in arrays if not c["op"].endswith("_backward")]
    usual = SHAPE.replace("x", "×")
    segments = by_segment_op(cells, peers)
    parts = [
        f"Measured on {tables.machine_line(report).partition(';')[0]}; {versions}. Every case is "
        "checked before it is timed, taking turns with a copy of the same number of bytes and with "
        "the peers. Results go into the caller's buffer. × is "
        "the peer's time over pullback's: above 1, pullback is faster. Backward passes, "
        f"{usual}, last axis:",
        by_op(backward, peers),
        *_titled(f"Forward passes, {usual}, last axis:", by_op(forward, peers, "forward op, f32")),
        *_titled("Segment ops, forward and backward, rows x columns -> segments:", segments),
        "Geometric means over the ops by shape and element type: share of the copy's bandwidth, "
        "speed against the fastest peer, and in how many cases a peer is faster by more than the "
        "noise. Backward passes:",
        by_shape(backward, lost),
        *_titled("Forward passes:", by_shape(forward, lost)),
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


def _titled(title: str, made: str) -> list[str]:
    """A table with a line before it; nothing if it has no rows."""
    return [title, made] if made.count("\n") > 1 else []


def _sizes(means: Mapping[str, float]) -> list[str]:
    where = {"within caches": "within the last-level cache", "beyond": "beyond it"}
    said = [f"{times(ratio)} {where.get(name, name)}" for name, ratio in means.items()]
    return [f"Speed against the fastest peer, by size: {', '.join(said)}."] if said else []


def _losses(cells: Sequence[Cell], lost: Sequence[str]) -> str:
    if not lost:
        return "No case is slower than its fastest peer."
    behind: dict[str, list[str]] = {}
    for cell in in_order(cells):
        op, *case = key_of(cell)
        found = figures(cell)
        if found is not None and " ".join(key_of(cell)) in lost:
            told = " ".join(part for part in case if part != "-")
            behind.setdefault(op, []).append(f"{told}: {times(found.against_fastest)}")
    rows = ([f"`{op}`", "; ".join(cases)] for op, cases in behind.items())
    listed = table(["op", "dtype, shape, axis: speed against the fastest peer"], rows)
    return f"Slower than the fastest peer in {len(lost)}:\n\n{listed.replace('---:', '---')}"


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
