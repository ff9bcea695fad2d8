"""Reports as single pages: the tables of the terminal, which rich writes as HTML, and bars.

No scripts, no fonts, no pictures from elsewhere.
"""

from __future__ import annotations

import html
import io
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from rich.console import Console, RenderableType
from rich.table import Table
from rich.terminal_theme import TerminalTheme
from rich.text import Text

from ..bench import compare
from ..bench.plot import COLOURS, shares
from . import tables

# A line of text is folded by the reader's window; a table, or bars, can be moved sideways in it.
PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1"><title>{title}</title><style>
:root {{ color-scheme: light dark; }}
body {{ margin: 0 auto; max-width: 72rem; padding: 1rem; font: 15px/1.5 system-ui, sans-serif; }}
h1 {{ font-size: 1.5rem; }} h2 {{ font-size: 1.15rem; margin-top: 2rem; }} p {{ margin: .3rem 0; }}
pre {{ overflow-x: auto; font: 13px/1.35 ui-monospace, Menlo, Consolas, monospace; }}
</style></head><body>
<h1>{title}</h1>
{parts}
</body></html>
"""
# Told from the ground by light and by dark; what is dim becomes the grey between black and white.
_RED, _GREEN = (205, 62, 52), (44, 148, 92)
_INK = [(0, 0, 0), _RED, _GREEN, *[(128, 128, 128)] * 5]
THEME = TerminalTheme((255, 255, 255), (0, 0, 0), _INK, _INK)
# Columns of the page, more than any table has; and of the longest bar, so that a phone shows it.
WIDTH, LONGEST = 400, 24
EIGHTHS = ("", *"▏▎▍▌▋▊▉")


def _console() -> Console:
    return Console(
        record=True, file=io.StringIO(), width=WIDTH, highlight=False, markup=False, emoji=False
    )


def fragment(part: RenderableType) -> str:
    """What the terminal would show, as HTML."""
    out = _console()
    out.print(part)
    code = out.export_html(theme=THEME, code_format="{code}", inline_styles=True)
    tag = "pre" if isinstance(part, Table) else "p"
    return f"<{tag}>{code.strip()}</{tag}>"


def page(title: str, report: Mapping[str, Any], parts: Iterable[RenderableType]) -> str:
    """A whole document: which version made it and when, then the parts."""
    when = f"{report['when'][:16].replace('T', ' ')} UTC"
    first = f"pullback {report['machine']['pullback']}; {when}"
    shown = [p.html() if isinstance(p, Heading) else fragment(p) for p in (first, *parts) if p]
    return PAGE.format(title=title, parts="\n".join(shown))


class Heading(Text):
    """A heading among the parts of a page."""

    def html(self) -> str:
        return f"<h2>{html.escape(self.plain)}</h2>"


def bars(
    rows: Mapping[str, Mapping[str, float]],
    place: Callable[[float], float],
    label: Callable[[float], str],
) -> Table:
    """Below the name of each row a bar for every value, ``place`` of it long, and what it says."""
    made = tables.table(["", "bar", "value"], ["value"], 1)
    made.show_header = False
    for row, values in rows.items():
        made.add_row(Text(row, style="bold"))
        for name, value in values.items():
            colour = COLOURS.get(name, "#777777")
            eighths = round(8 * LONGEST * min(1.0, place(value)))
            bar = "█" * (eighths // 8) + EIGHTHS[eighths % 8]
            made.add_row(Text(f"  {name}"), Text(bar, style=colour), label(value))
    return made


def bench_page(report: Mapping[str, Any], stat: str, old: Mapping[str, Any] | None = None) -> str:
    """A benchmark as a page."""
    reached = shares(report, stat)
    full = max((v for row in reached.values() for v in row.values()), default=1.0)
    parts: list[RenderableType] = [*tables.bench(report, stat, _console())]
    parts += [
        "ms: plan.run into the caller's buffer; call ms: the function that allocates its result; "
        "the column of a peer: its time over that of plan.run.",
        Heading("Useful bytes per second, as a share of a copy of the same bytes"),
        "Geometric mean over the cases of an op. Each operand counts once.",
        bars(reached, lambda v: v / full, tables.percent),
    ]
    if old is not None:
        parts += [Heading("Compared with before"), *tables.changes(compare(old, report))]
    return page("pullback bench", report, parts)


def scaling_page(report: Mapping[str, Any]) -> str:
    """Times against size, zeros and threads as a page."""
    return page("pullback bench --scaling", report, tables.scaling(report))


def check_page(report: Mapping[str, Any]) -> str:
    """A certification as a page."""
    machine, results = report["machine"], report["results"]
    libraries = ", ".join(f"{n} {v}" for n, v in machine["libraries"].items())
    parts: list[RenderableType] = [
        f"{machine['cpu']}, {machine['cores']} cores; {libraries}",
        *tables.checks(report, True, _console()),
        "Errors are against an oracle written from definitions, computed with at least 640 bits. A "
        "correctly rounded result is within 0.5. Where terms cancel, any result loses digits "
        "relative to its own size: what is allowed there follows from the size of the terms. The "
        "precision is the default, fast; tight is listed below it where it differs.",
    ]
    for dtype in dict.fromkeys(r["dtype"] for r in results):
        rows = {r["op"]: _errors(r) for r in results if r["dtype"] == dtype}
        parts += [Heading(f"Largest error in {dtype}, a logarithmic scale"), _error_bars(rows)]
    return page("pullback check", report, parts)


def _errors(result: Mapping[str, Any]) -> dict[str, float]:
    found = {"pullback": result["max_ulp"], "torch": result.get("torch_max_ulp")}
    return {name: value for name, value in found.items() if value is not None}


def _error_bars(rows: Mapping[str, Mapping[str, float]]) -> Table:
    """From a hundredth of a unit in the last place up."""
    finite = [v for row in rows.values() for v in row.values() if math.isfinite(v)]
    span = math.log10(max([10.0, *finite])) + 2

    def place(value: float) -> float:
        return max(0.0, math.log10(max(value, 0.01)) + 2) / span if value < math.inf else 1.0

    return bars(rows, place, tables.ulp)
