"""Tables for people, from the same reports that go into files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from ..bench import Change, figures

PLAIN = {"box": None, "pad_edge": False, "header_style": "bold"}


def table(columns: Sequence[str], right: Sequence[str] = (), title: str | None = None) -> Table:
    """An unboxed table; the columns named in ``right`` hold numbers."""
    made = Table(title=title, title_justify="left", **PLAIN)  # type: ignore[arg-type]
    for name in columns:
        made.add_column(name, justify="right" if name in right else "left", no_wrap=True)
    return made


def number(value: float | None, digits: int = 3) -> str:
    """A number with so many significant digits and no exponent."""
    if value is None:
        return "-"
    if value == 0:
        return "0"
    if abs(value) >= 10 ** (digits - 1):
        return f"{value:.0f}"
    return f"{value:.{digits}g}" if abs(value) >= 1e-3 else f"{value:.1g}"


def percent(value: float | None) -> str:
    """A share as a percentage."""
    return "-" if value is None else f"{100 * value:.0f}%"


def ratio(value: float | None) -> Text:
    """A ratio with a sign for times; one below 1, a loss, stands out."""
    if value is None:
        return Text("-", style="dim")
    return Text(f"{number(value, 2)}x", style="red" if value < 1 else "")


def _varying(cells: Sequence[Mapping[str, Any]]) -> list[str]:
    return [k for k in ("dtype", "shape", "axis") if len({c[k] for c in cells}) > 1]


def machine_line(report: Mapping[str, Any]) -> str:
    """The machine by CPU model and core count, with the libraries that were timed."""
    machine, settings = report["machine"], report["settings"]
    cores = f"{machine['cores']} core{'s' * (machine['cores'] != 1)}"
    threads = f"{settings['threads']} thread{'s' * (settings['threads'] != 1)}"
    libraries = {"compile": "torch"}
    shown = {libraries.get(n, n) for n in settings.get("peers", ())}
    versions = ", ".join(f"{n} {machine['libraries'].get(n)}" for n in sorted(shown))
    return f"{machine['cpu']}, {cores}, {threads}" + (f"; {versions}" if versions else "")


def bench(report: Mapping[str, Any], stat: str) -> Iterator[RenderableType]:
    """The table of a benchmark, its means, and what it lost."""
    cells = report["cells"]
    peers = list(report["settings"]["peers"])
    varying = _varying(cells)
    fixed = [f"{k} {cells[0][k]}" for k in ("dtype", "shape", "axis") if k not in varying]
    numbers = ["ms", "call ms", "GB/s", "of copy", *peers, "fastest"]
    made = table(["op", *varying, *numbers], numbers)
    for cell in cells:
        row: list[Any] = [cell["op"], *(cell[k] for k in varying)]
        found = figures(cell, stat)
        if found is None:
            reason = cell.get("skipped") or f"WRONG: {cell['check']['reason']}"
            made.add_row(*row, Text(reason, style="red"))
            continue
        row += [number(found.ms), number(found.function_ms), number(found.gbs)]
        row += [percent(found.of_copy), *(ratio(found.ratios.get(p)) for p in peers)]
        made.add_row(*row, ratio(found.against_fastest))
    yield machine_line(report)
    if fixed:
        yield ", ".join(fixed)
    yield ""
    yield made
    yield ""
    yield from _bench_summary(report["summary"], peers)


def _bench_summary(summary: Mapping[str, Any], peers: Sequence[str]) -> Iterator[RenderableType]:
    means = [f"{percent(summary['of_copy'])} of copy"] if summary["of_copy"] else []
    means += [f"{number(summary['against'][p], 2)}x {p}" for p in peers if p in summary["against"]]
    if summary["against_fastest"]:
        means.append(f"{number(summary['against_fastest'], 2)}x the fastest peer")
    if summary["function_against_fastest"]:
        called = number(summary["function_against_fastest"], 2)
        means.append(f"{called}x as a call that allocates")
    yield f"geometric means over {summary['cases']} cases: {', '.join(means)}"
    for what, names in (
        ("slower than a peer", summary["lost"]),
        ("wrong, not timed", summary["failed"]),
        ("skipped for lack of memory", summary["skipped"]),
    ):
        if names:
            yield Text(f"{what} in {len(names)}: {'; '.join(names)}", style="red")
    if peers and not summary["lost"]:
        yield "slower than a peer in none"


def changes(found: Sequence[Change]) -> Iterator[RenderableType]:
    """What got slower or faster beyond the noise of both runs."""
    yield ""
    moved = [c for c in found if c.beyond_noise]
    if not found:
        yield "compare: the two reports have no case in common"
        return
    if not moved:
        yield f"compare: none of {len(found)} cases changed beyond its noise"
        return
    numbers = ["before ms", "now ms", "change", "noise"]
    made = table(["op", "dtype", "shape", "axis", *numbers], numbers)
    for change in moved:
        style = "red" if change.speedup < 1 else "green"
        word = "slower" if change.speedup < 1 else "faster"
        factor = max(change.speedup, 1 / change.speedup)
        made.add_row(
            *change.key,
            number(change.old_ms),
            number(change.new_ms),
            Text(f"{factor:.2f}x {word}", style=style),
            percent(change.noise),
        )
    yield f"compare: {len(moved)} of {len(found)} cases changed beyond their noise"
    yield made


def scaling(report: Mapping[str, Any]) -> Iterator[RenderableType]:
    """Times against size, zeros and threads, with the fitted exponents."""
    yield machine_line(report)
    for study, heading, fitted in (
        ("size", "milliseconds against the number of elements", "exponent"),
        ("zeros", "milliseconds against the number of zeros among 1000000 elements", "exponent"),
        ("threads", "milliseconds against threads", "speedup"),
    ):
        points = [p for p in report["points"] if p["study"] == study]
        if not points:
            continue
        columns = sorted({p["at"] for p in points})
        rows: dict[tuple[str, ...], dict[int, float]] = {}
        for p in points:
            key = (p["op"], p["shape"]) if study == "threads" else (p["op"],)
            rows.setdefault(key, {})[p["at"]] = p["ms"]
        numbers = [f"{c:g}" if study == "size" else str(c) for c in columns] + [fitted]
        head = ["op", "shape"] if study == "threads" else ["op"]
        made = table([*head, *numbers], numbers)
        for key, times in rows.items():
            if study == "threads":
                last = f"{times[columns[0]] / times[columns[-1]]:.2f}x"
            else:
                value = report["exponents"][study].get(key[0])
                last = "-" if value is None else f"{value:.2f}"
            made.add_row(*key, *(number(times.get(c)) for c in columns), last)
        yield ""
        yield heading
        yield made
