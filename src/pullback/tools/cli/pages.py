"""Reports as single pages: no scripts, no fonts, no pictures from elsewhere."""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from ..bench import compare, figures
from ..bench.plot import COLOURS, shares
from .tables import each_precision, machine_line, number, of_allowed, percent, ulp

STYLE = """
:root { color-scheme: light dark; --ink: #1c2530; --soft: #5f6b7a; --line: #dfe4ea;
  --page: #ffffff; --panel: #f6f8fa; --good: #1a7f4b; --bad: #b3261e; --grid: #e6eaef; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e9ee; --soft: #9aa6b5; --line: #333c47;
  --page: #14181d; --panel: #1c2229; --good: #4cc38a; --bad: #f2766b; --grid: #2a323c; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 68rem; padding: 2rem 1.5rem 4rem; background: var(--page);
  color: var(--ink); font: 15px/1.5 system-ui, -apple-system, "Segoe UI", sans-serif; }
h1 { font-size: 1.6rem; margin: 0 0 .25rem; } h2 { font-size: 1.15rem; margin: 2.2rem 0 .6rem; }
h3 { font-size: 1rem; margin: 1.4rem 0 .4rem; }
p { margin: .3rem 0; max-width: 46rem; } .soft { color: var(--soft); } p.wide { max-width: none; }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(9.5rem, 1fr));
  gap: .75rem; margin: 1.2rem 0; }
.card { background: var(--panel); border: 1px solid var(--line); border-radius: 8px;
  padding: .6rem 1rem; }
.card b { display: block; font-size: 1.35rem; white-space: nowrap; }
.card span { color: var(--soft); }
.card.good b { color: var(--good); } .card.bad b { color: var(--bad); }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: .9rem; }
th, td { padding: .32rem .6rem; border-bottom: 1px solid var(--line); text-align: left;
  white-space: nowrap; }
th { color: var(--soft); font-weight: 600; border-bottom-width: 2px; }
td.n + td:not(.n), th.n + th:not(.n) { padding-left: 1.6rem; }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; }
td.good { color: var(--good); font-weight: 600; } td.bad { color: var(--bad); font-weight: 600; }
td.dim { color: var(--soft); } tbody tr:hover { background: var(--panel); }
svg { width: 100%; min-width: 38rem; height: auto; }
svg text { fill: var(--ink); font: 12px system-ui, sans-serif; }
svg text.soft { fill: var(--soft); } svg text.small { font-size: 9px; fill: var(--soft);
  stroke: var(--page); stroke-width: 3px; paint-order: stroke; }
svg line { stroke: var(--grid); } svg line.mark { stroke: var(--soft); stroke-dasharray: 3 3; }
"""


# Of a chart, in its own units: where the bars begin, how long and how thick they may be.
LEFT, TOP, WIDTH, THICK = 190, 34, 620, 10


def _escape(value: object) -> str:
    return html.escape(str(value))


def _when(report: Mapping[str, Any]) -> str:
    """The time of a report to the minute; it is kept in UTC."""
    return f"{report['when'][:16].replace('T', ' ')} UTC"


def _heading(report: Mapping[str, Any]) -> str:
    """Which version ran where and when, beside what."""
    version = report["machine"]["pullback"]
    return f"pullback {version} on {machine_line(report)}; {_when(report)}"


def page(title: str, subtitle: str, parts: Iterable[str]) -> str:
    """A whole document."""
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{_escape(title)}</title><style>{STYLE}</style></head><body>\n"
        f'<h1>{_escape(title)}</h1><p class="soft wide">{_escape(subtitle)}</p>\n'
        + "\n".join(parts)
        + "\n</body></html>\n"
    )


def cards(given: Iterable[tuple[str, ...]]) -> str:
    """Large figures with a caption each, and perhaps a class."""
    inside = "".join(
        f'<div class="{" ".join(["card", *kind])}"><b>{_escape(value)}</b>'
        f"<span>{_escape(name)}</span></div>"
        for value, name, *kind in given
    )
    return f'<div class="cards">{inside}</div>'


def table(columns: Sequence[str], rows: Iterable[Sequence[tuple[str, str]]]) -> str:
    """A table of (text, class) cells; columns of class "n" hold numbers."""
    body = list(rows)
    classes = [cell[1] for cell in body[0]] if body else []
    head = "".join(
        f'<th class="n">{_escape(c)}</th>' if "n" in k.split() else f"<th>{_escape(c)}</th>"
        for c, k in zip(columns, classes or [""] * len(columns), strict=True)
    )
    lines = "".join(
        "<tr>" + "".join(f'<td class="{k}">{_escape(v)}</td>' for v, k in row) + "</tr>\n"
        for row in body
    )
    return (
        f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>\n{lines}</tbody>'
        "</table></div>"
    )


def bar_chart(
    rows: Mapping[str, Mapping[str, float]],
    names: Sequence[str],
    ticks: Sequence[tuple[float, str]],
    place: Callable[[float], float],
    label: Callable[[float], str],
    mark: float,
) -> str:
    """Horizontal bars grouped by row, each with its value.

    Parameters
    ----------
    rows
        Values by row and name.
    ticks
        Values with what the axis says there.
    place
        Maps a value to a share of the width.
    label
        A value as text.
    mark
        The value whose line stands out.
    """
    group = THICK * len(names) + 12
    bottom = TOP + group * len(rows) + 2
    box = f'<svg viewBox="0 0 {LEFT + WIDTH + 70} {bottom + 22}" role="img">'
    out = [f'<div class="scroll">{box}', _legend(names)]
    for value, text in ticks:
        x = LEFT + WIDTH * place(value)
        kind = ' class="mark"' if value == mark else ""
        out.append(
            f'<line{kind} x1="{x:.1f}" x2="{x:.1f}" y1="28" y2="{bottom}"/>'
            f'<text class="soft" x="{x:.1f}" y="{bottom + 15}" text-anchor="middle">'
            f"{_escape(text)}</text>"
        )
    for r, (row, values) in enumerate(rows.items()):
        top = TOP + r * group
        middle = top + THICK * len(names) / 2 + 4
        out.append(f'<text x="{LEFT - 8}" y="{middle:.1f}" text-anchor="end">{_escape(row)}</text>')
        for k, name in enumerate(names):
            if name in values:
                length = max(1.0, WIDTH * min(1.06, place(values[name])))
                out.append(_bar(row, name, label(values[name]), length, top + k * THICK))
    return "".join([*out, "</svg></div>"])


def _legend(names: Sequence[str]) -> str:
    out, at = [], LEFT
    for name in names:
        out.append(
            f'<rect x="{at}" y="6" width="11" height="11" rx="2" fill="{_colour(name)}"/>'
            f'<text x="{at + 16}" y="16">{_escape(name)}</text>'
        )
        at += 34 + 8 * len(name)
    return "".join(out)


def _bar(row: str, name: str, said: str, length: float, y: int) -> str:
    return (
        f'<rect x="{LEFT}" y="{y}" width="{length:.1f}" height="{THICK - 1}" rx="1.5" '
        f'fill="{_colour(name)}"><title>{_escape(f"{row}, {name}: {said}")}</title></rect>'
        f'<text class="small" x="{LEFT + length + 4:.1f}" y="{y + 8}">{_escape(said)}</text>'
    )


def _colour(name: str) -> str:
    return COLOURS.get(name, "#777777")


BENCH_COLUMNS = ("op", "dtype", "shape", "axis", "ms", "call ms", "GB/s", "of copy")
FASTEST = ("fastest peer",)


def bench_page(report: Mapping[str, Any], stat: str, old: Mapping[str, Any] | None = None) -> str:
    """A benchmark as a page."""
    summary, peers = report["summary"], list(report["settings"]["peers"])
    top = [(percent(summary["of_copy"]), "of a copy's speed")]
    if summary["against_fastest"]:
        top.append((f"{number(summary['against_fastest'], 2)}x", "the fastest peer's speed"))
    top += [
        (f"{number(summary['against'][p], 2)}x", f"{p}'s speed")
        for p in peers
        if p in summary["against"]
    ]
    if peers:
        top.append((f"{len(summary['lost'])}/{summary['cases']}", "cases lost to a peer"))
    reached = shares(report, stat)
    highest = max((v for row in reached.values() for v in row.values()), default=1.0)
    full = max(1.0, math.ceil(highest * 5) / 5)
    ticks = [(k / 5, f"{20 * k}%") for k in range(round(full * 5) + 1)]
    parts = [
        cards(top),
        '<p class="soft">Geometric means over the cases; all is measured in the same run.</p>',
        "<h2>Useful bytes per second, as a share of a copy of the same bytes</h2>",
        '<p class="soft">Geometric mean over the cases of an op. Each operand counts once.</p>',
        bar_chart(reached, ["pullback", *peers], ticks, lambda v: v / full, percent, 1.0),
    ]
    if old is not None:
        parts += ["<h2>Compared with before</h2>", _changes(old, report)]
    parts += [
        "<h2>Every case</h2>",
        '<p class="soft">ms: plan.run into the caller\'s buffer; call: the function that allocates '
        "its result. The ratio of a peer is its time over that of plan.run: 2x means that "
        "pullback takes half the time.</p>",
        table(
            [*BENCH_COLUMNS, *peers, *FASTEST[: len(peers)]],
            [_bench_row(cell, stat, peers) for cell in report["cells"]],
        ),
    ]
    return page("pullback bench", _heading(report), parts)


def _bench_row(cell: Mapping[str, Any], stat: str, peers: Sequence[str]) -> list[tuple[str, str]]:
    row = [(cell["op"], ""), (cell["dtype"], ""), (cell["shape"], ""), (cell["axis"], "")]
    found = figures(cell, stat)
    if found is None:
        reason = cell.get("skipped") or f"WRONG: {cell['check']['reason']}"
        return [*row, (reason, "bad"), *[("", "n")] * (3 + len(peers) + bool(peers))]
    row += [(number(v), "n") for v in (found.ms, found.function_ms, found.gbs)]
    row.append((percent(found.of_copy), "n"))
    for peer in peers:
        ratio = found.ratios.get(peer)
        kind = "n dim" if ratio is None else "n bad" if ratio < 1 else "n"
        row.append(("-" if ratio is None else f"{number(ratio, 2)}x", kind))
    if peers:
        row.append((found.fastest or "-", "dim"))
    return row


def _changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    found = compare(old, new)
    moved = [c for c in found if c.beyond_noise]
    if not moved:
        return f"<p>None of {len(found)} common cases changed beyond its noise.</p>"
    rows = [
        [
            *((part, "") for part in c.key),
            (number(c.old_ms), "n"),
            (number(c.new_ms), "n"),
            (f"{c.speedup:.2f}x", "n good" if c.speedup > 1 else "n bad"),
            (percent(c.noise), "n"),
        ]
        for c in moved
    ]
    columns = ["op", "dtype", "shape", "axis", "before ms", "now ms", "speedup", "noise"]
    return table(columns, rows)


def scaling_page(report: Mapping[str, Any]) -> str:
    """Times against size, zeros and threads as a page."""
    parts = []
    for study, heading in (
        ("size", "Milliseconds against the number of elements"),
        ("zeros", "Milliseconds against the number of zeros"),
        ("threads", "Milliseconds against threads"),
    ):
        points = [p for p in report["points"] if p["study"] == study]
        if not points:
            continue
        columns = sorted({p["at"] for p in points})
        rows: dict[tuple[str, str], dict[int, float]] = {}
        for p in points:
            label = p["shape"] if study == "threads" else ""
            rows.setdefault((p["op"], label), {})[p["at"]] = p["ms"]
        fitted = report["exponents"].get(study, {})
        lines = []
        for (op, label), times in rows.items():
            exponent = fitted.get(op)
            last = "" if exponent is None else f"{exponent:.2f}"
            if study == "threads":
                last = f"{times[columns[0]] / times[columns[-1]]:.2f}x"
            cells = [(number(times.get(c)), "n") for c in columns]
            lines.append([(op, ""), (label, ""), *cells, (last, "n")])
        end = "speedup" if study == "threads" else "exponent"
        head = ["op", "shape" if study == "threads" else "", *(f"{c:,}" for c in columns), end]
        parts += [f"<h2>{heading}</h2>", table(head, lines)]
    return page("pullback bench --scaling", _heading(report), parts)


def check_page(report: Mapping[str, Any]) -> str:
    """A certification as a page."""
    results = report["results"]
    failed = [r for r in results if not r["ok"]]
    machine = report["machine"]
    libraries = machine["libraries"]
    theirs = any("torch_max_ulp" in r for r in results)
    top = [
        ("FAIL", "this installation", "bad") if failed else ("pass", "this installation", "good"),
        (f"{len(results) - len(failed)}/{len(results)}", "op and dtype pairs passed"),
        *(_worst(results, d) for d in dict.fromkeys(r["dtype"] for r in results)),
    ]
    with_torch = f", torch {libraries['torch']}" if theirs and "torch" in libraries else ""
    subtitle = (
        f"pullback {machine['pullback']} on {machine['cpu']}, {machine['cores']} cores; "
        f"numba {libraries.get('numba')}, numpy {libraries.get('numpy')}{with_torch}; "
        f"{_when(report)}"
    )
    parts = [cards(top)]
    if failed:
        lines = "".join(
            f"<li>{_escape(r['op'])} {_escape(r['dtype'])}: {_escape('; '.join(r['reasons']))}</li>"
            for r in failed
        )
        parts.append(f"<h2>Failures</h2><ul>{lines}</ul>")
    names = ["pullback", "torch"] if theirs else ["pullback"]
    parts += [
        "<h2>Largest error in units in the last place</h2>",
        '<p class="soft">Against an oracle written from definitions, computed with at least 640 '
        "bits. A correctly rounded result is within 0.5; the scale is logarithmic. Where terms "
        "cancel, any result loses digits relative to its own size: what is allowed there follows "
        "from the size of the terms. The precision is the default, fast; tight stands below where "
        "it differs.</p>",
    ]
    for dtype in dict.fromkeys(r["dtype"] for r in results):
        rows = {r["op"]: _ulps(r) for r in results if r["dtype"] == dtype}
        parts += [f"<h3>{_escape(dtype)}</h3>", _ulp_chart(rows, names)]
    columns = ["op", "dtype", "max", "mean"]
    columns += ["torch max", "torch mean"] if theirs else []
    columns += ["of allowed", "same bytes", "result"]
    parts += [
        "<h2>Every check</h2>",
        '<p class="soft">Of allowed: the largest error as a share of what its terms allow at that '
        "place, edges included. Same bytes: of memory layouts (Fortran order, sliced, negative "
        "strides, unaligned, first axis, reversed scans, in place), of the function and of 2, 3 "
        "and 8 threads, how many give the bytes of a C-ordered plan on one thread.</p>",
        table(columns, [_check_row(r, theirs) for r in each_precision(results)]),
    ]
    return page("pullback check", subtitle, parts)


def _worst(results: Sequence[Mapping[str, Any]], dtype: str) -> tuple[str, str]:
    """The largest error in a dtype, with torch's."""
    rows = [r for r in results if r["dtype"] == dtype]
    theirs = [r["torch_max_ulp"] for r in rows if r.get("torch_max_ulp") is not None]
    beside = f" (torch {ulp(max(theirs))})" if theirs else ""
    return f"{ulp(max(r['max_ulp'] for r in rows))} ulp", f"largest error in {dtype}{beside}"


def _ulps(result: Mapping[str, Any]) -> dict[str, float]:
    found = {"pullback": result["max_ulp"]}
    if result.get("torch_max_ulp") is not None:
        found["torch"] = result["torch_max_ulp"]
    return found


def _ulp_chart(rows: Mapping[str, Mapping[str, float]], names: Sequence[str]) -> str:
    finite = [v for row in rows.values() for v in row.values() if math.isfinite(v)]
    decades = max(1, math.ceil(math.log10(max([1.0, *finite]) + 1e-9)))
    span = decades + 2

    def place(value: float) -> float:
        """The width is logarithmic from 0.01 up."""
        return max(0.0, math.log10(max(value, 0.01)) + 2) / span if value < math.inf else 1.05

    ticks = [(0.5, "0.5")] + [(10.0**k, f"{10**k:,}") for k in range(1, decades + 1)]
    return bar_chart(rows, names, ticks, place, ulp, 0.5)


def _check_row(result: Mapping[str, Any], theirs: bool) -> list[tuple[str, str]]:
    row = [(result["op"], ""), (result["dtype"], "")]
    row += [(ulp(result["max_ulp"]), "n"), (ulp(result["mean_ulp"]), "n")]
    if theirs:
        row += [(ulp(result.get(f"torch_{k}_ulp")), "n dim") for k in ("max", "mean")]
    same = [*result["layouts"].values(), result["function"], *result["threads"].values()]
    row.append((of_allowed([{k: v for k, v in result.items() if k != "tight"}]), "n"))
    row.append((f"{sum(same)} of {len(same)}", "n" if all(same) else "n bad"))
    return [*row, ("pass", "good") if result["ok"] else ("FAIL", "bad")]
