"""Tables for people, from the same reports that go into files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from ...core.declare import Op
from ..bench import Change, figures

# From here on the catalog has a column for what is usually the same for every op.
WIDE_OPS = 110
KEYS = ("dtype", "shape", "axis")
PLAIN = {"box": None, "pad_edge": False, "header_style": "bold"}


def table(columns: Sequence[str], right: Sequence[str] = (), gap: int = 2) -> Table:
    """An unboxed table; the columns named in ``right`` hold numbers, and shapes may be folded."""
    made = Table(padding=(0, gap, 0, 0), **PLAIN)  # type: ignore[arg-type]
    for name in columns:
        made.add_column(
            name,
            justify="right" if name in right else "left",
            no_wrap=name != "shape",
            overflow="fold" if name == "shape" else "ellipsis",
        )
    return made


def fits(made: Table, out: Console) -> bool:
    """Whether a table can be printed without folding or cutting anything."""
    return out.measure(made, options=out.options.update(width=10_000)).maximum <= out.width


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
    if value is None:
        return "-"
    return f"{100 * value:.0f}%" if value < 1e6 else "inf"


def ratio(value: float | None) -> Text:
    """A ratio with a sign for times; one below 1, a loss, stands out."""
    if value is None:
        return Text("-", style="dim")
    return Text(f"{number(value, 2)}x", style="red" if value < 1 else "")


def _varying(cells: Sequence[Mapping[str, Any]]) -> list[str]:
    return [k for k in KEYS if len({c[k] for c in cells}) > 1]


def machine_line(report: Mapping[str, Any]) -> str:
    """The machine by CPU model and core count, with the libraries that were timed."""
    machine, settings = report["machine"], report["settings"]
    cores = f"{machine['cores']} core{'s' * (machine['cores'] != 1)}"
    threads = f"{settings['threads']} thread{'s' * (settings['threads'] != 1)}"
    libraries = {"compile": "torch", "jax.scan": "jax"}
    shown = {libraries.get(n, n) for n in settings.get("peers", ())}
    versions = ", ".join(f"{n} {machine['libraries'].get(n)}" for n in sorted(shown))
    return f"{machine['cpu']}, {cores}, {threads}" + (f"; {versions}" if versions else "")


def bench(
    report: Mapping[str, Any], stat: str, out: Console, by_op: bool = False
) -> Iterator[RenderableType]:
    """The table of a benchmark, its means, and what it lost; ``by_op``, means in place of cases."""
    cells = report["cells"]
    peers = list(report["settings"]["peers"])
    fixed = [f"{k} {cells[0][k]}" for k in KEYS if k not in _varying(cells)]
    if by_op:
        made = _op_table(report["summary"]["by_op"])
    else:
        made = _bench_table(cells, stat, peers, short=False)
        if not fits(made, out):
            made = _bench_table(cells, stat, peers, short=True)
    yield machine_line(report)
    if fixed:
        yield ", ".join(fixed)
    yield ""
    yield made
    yield ""
    yield from _bench_summary(report["summary"], peers)
    for warning in report.get("warnings", ()):
        yield Text(f"WARNING {warning}", style="bold red")
    for cell in cells:
        if not cell.get("check", {}).get("ok", True):
            yield Text(f"WRONG {cell['op']}: {cell['check']['reason']}", style="red")


def _op_table(by_op: Mapping[str, Mapping[str, Any]]) -> Table:
    """Of every op the means against the fastest peer, and how many cases it lost."""
    sizes = ("within caches", "beyond")
    made = table(["op", *sizes, "cases", "lost"], [*sizes, "cases", "lost"])
    for op, found in by_op.items():
        counts = (str(found["cases"]), str(found["lost"] or "-"))
        made.add_row(op, *(ratio(found.get(size)) for size in sizes), *counts)
    return made


def _bench_table(
    cells: Sequence[Mapping[str, Any]], stat: str, peers: Sequence[str], short: bool
) -> Table:
    """Every case; a short table has neither the time of a call nor the fastest peer."""
    varying = _varying(cells)
    rest = [] if short else ["fastest"]
    numbers = ["ms", *([] if short else ["call ms"]), "GB/s", "of copy", *peers, *rest]
    which = ["peer"] if rest and len(peers) > 1 else []
    made = table(["op", *varying, *numbers, *which], numbers, 1 if short else 2)
    for cell in cells:
        row: list[Any] = [cell["op"], *(cell[k] for k in varying)]
        found = figures(cell, stat)
        if found is None:
            made.add_row(*row, Text("skipped" if "skipped" in cell else "WRONG", style="red"))
            continue
        row.append(number(found.ms))
        if not short:
            row.append(number(found.function_ms))
        row += [number(found.gbs), percent(found.of_copy)]
        row += [ratio(found.ratios.get(p)) for p in peers]
        if not short:
            row.append(ratio(found.against_fastest))
            row += [found.fastest or "-"] if len(peers) > 1 else []
        made.add_row(*row)
    return made


def _bench_summary(summary: Mapping[str, Any], peers: Sequence[str]) -> Iterator[RenderableType]:
    means = [f"{percent(summary['of_copy'])} of copy"] if summary["of_copy"] else []
    means += [f"{number(summary['against'][p], 2)}x {p}" for p in peers if p in summary["against"]]
    if summary["against_fastest"]:
        means.append(f"{number(summary['against_fastest'], 2)}x the fastest peer")
    if summary["function_against_fastest"]:
        called = number(summary["function_against_fastest"], 2)
        means.append(f"{called}x as a call that allocates")
    cases = f"{summary['cases']} case{'s' * (summary['cases'] != 1)}"
    yield f"geometric means over {cases}: {', '.join(means) or 'none was timed'}"
    if len(summary.get("by_size", {})) > 1:
        parts = (f"{number(mean, 2)}x {where}" for where, mean in summary["by_size"].items())
        yield f"against the fastest peer: {', '.join(parts)}"
    if peers:
        yield "2x means that pullback takes half the time"
    if summary.get("noise"):
        middle, worst = summary["noise"]
        yield f"noise: {percent(middle)} in the middle, {percent(worst)} at worst"
    behind = summary.get("lost_by", {})
    lost = [f"{n} ({number(behind[n], 2)}x)" if n in behind else n for n in summary["lost"]]
    for what, names in (
        ("slower than a peer", lost),
        ("slower than a peer by less than the noise", summary.get("close", ())),
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
        yield f"compare: of {len(found)} in common, no case changed beyond its noise"
        return
    numbers = ["before ms", "now ms", "change", "noise"]
    made = table(["op", "dtype", "shape", "axis", *numbers], numbers)
    for change in moved:
        style = "red" if change.speedup < 1 else "green"
        word = "slower" if change.speedup < 1 else "faster"
        factor = max(change.speedup, 1 / change.speedup)
        shown = f"{factor:.2f}" if factor < 100 else f"{factor:.3g}"
        made.add_row(
            *change.key,
            number(change.old_ms),
            number(change.new_ms),
            Text(f"{shown}x {word}", style=style),
            percent(change.noise),
        )
    yield f"compare: {len(moved)} of {len(found)} cases changed beyond their noise"
    yield made


def frontends(report: Mapping[str, Any]) -> Iterator[RenderableType]:
    """Forward and backward through each framework, ours beside its own."""
    yield machine_line(report)
    for framework in dict.fromkeys(r["frontend"] for r in report["frontends"]):
        made = table(
            ["op", "shape", "ms", f"{framework} ms", "times"], ["ms", f"{framework} ms", "times"]
        )
        for r in report["frontends"]:
            if r["frontend"] == framework:
                ratio = f"{r['own_ms'] / r['ms']:.2f}x"
                made.add_row(r["op"], r["shape"], number(r["ms"]), number(r["own_ms"]), ratio)
        yield ""
        yield f"forward and backward through pullback.{framework}, beside {framework}'s own"
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
            name: tuple[str, ...] = (p["op"], p["shape"]) if study == "threads" else (p["op"],)
            rows.setdefault(name, {})[p["at"]] = p["ms"]
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


def ops(found: Sequence[Op], formulas: bool, out: Console) -> Iterator[RenderableType]:
    """The catalog; where there is no room, what all ops share is said below it."""
    shared = [n for n in ("dtypes", "backends") if len({getattr(op, n) for op in found}) == 1]
    below = shared if out.width < WIDE_OPS else []
    extra = [n for n in ("dtypes", "backends") if n not in below]
    made = table(["op", "family", "needs", *extra])
    made.add_column("formula" if formulas else "edge rules", overflow="fold")
    for op in found:
        more = [" ".join(getattr(op, name)) for name in extra]
        needs = " ".join(sorted(op.needs)) or "-"
        last = op.formula if formulas else op.edges or "-"
        made.add_row(op.name, op.family, needs, *more, last)
    yield made
    yield ""
    same = [f"{name} {' '.join(getattr(found[0], name))}" for name in below]
    yield "; ".join([f"{len(found)} op{'s' * (len(found) != 1)}", *same])


def _pairs(rows: Mapping[str, str]) -> Table:
    made = Table(show_header=False, **PLAIN)  # type: ignore[arg-type]
    made.add_column(style="bold", no_wrap=True)
    made.add_column(overflow="fold")
    for name, value in rows.items():
        made.add_row(name, value)
    return made


def size(count: float) -> str:
    """Bytes with a unit."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"


def explanation(found: Mapping[str, Any]) -> Iterator[RenderableType]:
    """Everything about an op but its snippet."""
    sku, guarantee = found["sku"], found["guarantee"]
    promises = [k.replace("_", " ") for k, v in guarantee.items() if v is True]
    where = f"{'x'.join(map(str, found['shape']))} {found['dtype']}"
    if found["axis"] != "-":
        where += f", axis {found['axis']}"
    rows = {
        "op": f"{found['name']} ({found['family']}, {found['direction']})",
        "formula": found["formula"],
    }
    if found["derivation"]:
        rows["derivation"] = "\n".join(found["derivation"])
    rows |= {
        "saves": ", ".join(found["needs"]) or "none",
        "edges": found["edges"] or "none",
    }
    if found["ties"]:
        rows["ties"] = f"{', '.join(found['ties'])} (default {found['ties'][0]})"
    rows |= {
        "guarantee": f"computed in {guarantee['math_precision']}, accumulated in "
        f"{guarantee['accumulator']}, rounded once to {found['dtype']};\n{', '.join(promises)}",
        "kernel": f"for {where}: " + ", ".join(f"{k} {v}" for k, v in sku.items() if v),
        "bytes moved": f"{size(found['bytes_moved'])}: {', '.join(found['reads'])} read, "
        f"{', '.join(found['outputs'])} written, each once",
        "workspace": size(found["workspace_bytes"]),
    }
    yield _pairs(rows)
    yield ""


def _cache(found: Mapping[str, Any]) -> str:
    if found["folder"] is None:
        return "none: there is no home to keep kernels in"
    held = f"{found['folder']}: {found['kernels']} kernels, {size(found['bytes'])}"
    if found["refused"]:
        return f"{held}, not used: {found['refused']}"
    return held if found["writable"] else f"{held}, not writable"


def environment(found: Mapping[str, Any]) -> RenderableType:
    """What a bug report needs."""
    choices = found["choices"]
    rows = {
        "pullback": found["pullback"],
        "python": f"{found['python']} on {found['system']}",
        "cpu": f"{found['cpu']}, {found['cores']} cores",
        "features": " ".join(found["cpu_features"]) or "unknown",
        "memory": f"{size(found['memory_available_bytes'])} available",
        "caches": _caches(found["caches"]),
        "threads": f"{found['threads']}, from {size(choices['threads_from_bytes'])} of traffic on"
        f" where they are awake, else from {size(choices['woken_from_bytes'])}",
        "stores": f"past the caches from {size(choices['past_the_caches_from_bytes'])} on",
        "gpu": ", ".join(found["gpus"]) or "none",
        "cache": _cache(found["cache"]),
    }
    rows |= found["libraries"]
    rows |= {name: version or "not installed" for name, version in found["cli"].items()}
    rows |= found["variables"]
    return _pairs(rows)


def _caches(found: Mapping[str, Any]) -> str:
    sizes = ", ".join(
        f"{word} {size(found[level])}"
        for level, word in (("l1", "L1"), ("l2", "L2"), ("last_level", "last level"))
    )
    return f"{sizes} ({found['source']})"


def ulp(value: float | None) -> str:
    """An error in ulps."""
    if value is None:
        return "-"
    if value == float("inf"):
        return "wrong"
    return number(value, 2) if value < 99999.5 else f"{value:.1e}".replace("e+0", "e")


def checks(report: Mapping[str, Any], long: bool, out: Console) -> Iterator[RenderableType]:
    """Pass or fail for each op, with its errors and torch's."""
    results = report["results"]
    theirs = any("torch_max_ulp" in r for r in results)
    make = _checks_long if long else _checks_short
    # The narrowest is without shares: eighty columns hold four dtypes beside torch's.
    tried = [
        make(results, theirs, gap, shares) for gap, shares in ((2, True), (1, True), (1, False))
    ]
    made = next((t for t in tried if fits(t, out)), tried[-1])
    what = "errors" if long else "largest error"
    yield f"{what} in units in the last place" + (", next to torch's" if theirs else "")
    if made is not tried[-1]:
        yield "allowed: the largest error as a share of what is allowed, edge cases included"
    yield "bytes: layouts, kinds of call and thread counts that give the same bytes"
    yield ""
    yield made
    yield ""
    failed = [r for r in results if not r["ok"]]
    for r in failed:
        yield Text(f"FAIL {r['op']} {r['dtype']}: {'; '.join(r['reasons'])}", style="red")
    count = f"{len(results)} checks"
    if failed:
        yield Text(f"{len(failed)} of {count} failed", style="bold red")
    else:
        yield Text(f"all {count} passed", style="bold green")


def _checks_short(
    results: Sequence[Mapping[str, Any]], theirs: bool, gap: int, shares: bool
) -> Table:
    """A line for each op, with the largest error in every dtype."""
    dtypes = list(dict.fromkeys(r["dtype"] for r in results))
    by_op: dict[str, dict[str, Mapping[str, Any]]] = {}
    for r in results:
        by_op.setdefault(r["op"], {})[r["dtype"]] = r
    columns = [c for d in dtypes for c in ((d, "torch") if theirs else (d,))]
    numbers = [*columns, *(["allowed"] if shares else []), "bytes"]
    made = table(["op", *numbers, "result"], numbers, gap)
    for op, row in by_op.items():
        cells: list[Any] = []
        for d in dtypes:
            r = row.get(d, {})
            cells.append(ulp(r.get("max_ulp")))
            if theirs:
                cells.append(Text(ulp(r.get("torch_max_ulp")), style="dim"))
        rows = list(row.values())
        cells += [of_allowed(rows)] if shares else []
        made.add_row(op, *cells, _bytes(rows), _verdict(rows))
    return made


def of_allowed(rows: Sequence[Mapping[str, Any]]) -> str:
    """The largest error over what is allowed, of all rows and precisions."""
    both = [*rows, *(r["tight"] for r in rows if "tight" in r)]
    return percent(max((r["of_allowed"] for r in both if "of_allowed" in r), default=None))


def digests(
    found: Mapping[str, Mapping[str, str]],
    known: Mapping[str, Mapping[str, str]],
    differing: Sequence[tuple[str, str]],
) -> Iterator[RenderableType]:
    """Digests of results by op and dtype, and how they compare with those that are published."""
    dtypes = list(dict.fromkeys(d for row in found.values() for d in row))
    made = table(["op", *dtypes])
    for op, row in found.items():
        cells = [
            Text(row.get(d, "-"), style="bold red" if (op, d) in differing else "") for d in dtypes
        ]
        made.add_row(op, *cells)
    yield made
    yield ""
    compared = [(op, d) for op, row in found.items() for d in row if d in known.get(op, {})]
    for op, d in differing:
        yield Text(f"DIFFERS {op} {d}: published {known[op][d]}", style="red")
    same = f"{len(compared) - len(differing)} of {len(compared)} as published"
    yield Text(same, style="bold red" if differing else "bold green")
    new = sum(len(row) for row in found.values()) - len(compared)
    if new:
        yield f"{new} are not among the published ones"


def each_precision(results: Sequence[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """The results, and those of the precision "tight" behind where they differ."""
    for r in results:
        yield r
        if "tight" in r:
            yield {**r, "torch_max_ulp": None, **r["tight"], "dtype": f"{r['dtype']} tight"}


def _bytes(rows: Sequence[Mapping[str, Any]]) -> Text:
    rows = [*rows, *(r["tight"] for r in rows if "tight" in r)]
    kinds = [{**r["layouts"], "function": r["function"], **r["threads"]} for r in rows]
    same = sum(sum(k.values()) for k in kinds)
    total = sum(len(k) for k in kinds)
    return Text(f"{same}/{total}", style="" if same == total else "red")


def _verdict(rows: Sequence[Mapping[str, Any]]) -> Text:
    ok = all(r["ok"] for r in rows)
    return Text("pass" if ok else "FAIL", style="green" if ok else "bold red")


def _checks_long(
    results: Sequence[Mapping[str, Any]], theirs: bool, gap: int, shares: bool
) -> Table:
    """A line for each op and dtype, with the largest and the mean error."""
    numbers = ["max", "mean", *(("torch max", "mean") if theirs else ())]
    numbers += ["allowed", "bytes"] if shares else ["bytes"]
    made = table(["op", "dtype", *numbers, "result"], numbers, gap)
    for r in each_precision(results):
        cells = [ulp(r["max_ulp"]), ulp(r["mean_ulp"])]
        if theirs:
            cells += [ulp(r.get("torch_max_ulp")), ulp(r.get("torch_mean_ulp"))]
        alone = {k: v for k, v in r.items() if k != "tight"}
        cells += [of_allowed([alone])] if shares else []
        made.add_row(r["op"], r["dtype"], *cells, _bytes([alone]), _verdict([r]))
    return made
