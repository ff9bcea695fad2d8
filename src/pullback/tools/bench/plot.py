"""Pictures of reports, as PNG bytes. Needs matplotlib."""

from __future__ import annotations

import importlib.util
import io
from collections.abc import Mapping, Sequence
from typing import Any

from ...errors import UnsupportedError
from .summary import figures, geometric_mean

# Blue for pullback, greys and warm tones for the others; distinct in print and to the colour-blind.
COLOURS = {
    "pullback": "#1f5fa8",
    "torch": "#e07b39",
    "compile": "#f2b880",
    "entmax": "#b5543c",
    "jax": "#5aa469",
    "jax.scan": "#a8d5b0",
    "numpy": "#9a9a9a",
}


# What a title names beside the machine.
VARYING = ("dtype", "shape")
MOST_NAMED = 4


def require() -> None:
    """Raise where plotting is not possible, before the work whose result would be drawn."""
    if importlib.util.find_spec("matplotlib") is None:
        raise UnsupportedError("plotting needs matplotlib: pip install matplotlib")


def _pyplot() -> Any:
    require()
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot


def _png(figure: Any) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=120)
    _pyplot().close(figure)
    return buffer.getvalue()


def shares(report: Mapping[str, Any], stat: str = "ms") -> dict[str, dict[str, float]]:
    """By op, the share of the copy that each contender reaches: a geometric mean over its cases."""
    found: dict[str, dict[str, list[float]]] = {}
    for cell in report["cells"]:
        numbers = figures(cell, stat)
        if numbers is None or numbers.of_copy is None:
            continue
        row = found.setdefault(cell["op"], {})
        row.setdefault("pullback", []).append(numbers.of_copy)
        for peer, ratio in numbers.ratios.items():
            row.setdefault(peer, []).append(numbers.of_copy / ratio)
    return {
        op: {name: geometric_mean(v) or 0.0 for name, v in row.items()} for op, row in found.items()
    }


def bars(report: Mapping[str, Any], stat: str = "ms") -> bytes:
    """Bars per op: share of copy bandwidth, peers beside it."""
    plt = _pyplot()
    table = shares(report, stat)
    names = ["pullback", *report["settings"]["peers"]]
    height = 0.8 / len(names)
    figure, axes = plt.subplots(figsize=(8, 1.2 + 0.42 * max(1, len(table))), layout="constrained")
    for k, name in enumerate(names):
        at = [row + (k - (len(names) - 1) / 2) * height for row in range(len(table))]
        values = [100 * row.get(name, 0.0) for row in table.values()]
        axes.barh(at, values, height, label=name, color=COLOURS.get(name, "#777777"))
    axes.set_yticks(range(len(table)), list(table))
    axes.invert_yaxis()
    axes.axvline(100, color="#444444", linewidth=0.8, linestyle="--")
    axes.set_xlabel("useful bytes per second, % of a copy of the same bytes")
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(frameon=False, loc="outside lower center", ncols=len(names))
    axes.set_title(_title(report), fontsize=9, loc="left")
    return _png(figure)


def _title(report: Mapping[str, Any]) -> str:
    """What was run, of which types and shapes, and where."""
    machine = report["machine"]
    where = f"pullback {machine['pullback']}, {machine['cpu']}, {machine['cores']} cores"
    cases = [c for c in report.get("cells", report.get("points", ())) if c.get("dtype")]
    what = {k: list(dict.fromkeys(str(c[k]) for c in cases if k in c)) for k in VARYING}
    return "\n".join([where, *(_listed(k, found) for k, found in what.items() if found)])


def _listed(kind: str, found: Sequence[str]) -> str:
    """All of a few; of many the first and the last, since a title does not wrap."""
    if len(found) <= MOST_NAMED:
        return ", ".join(found)
    return f"{len(found)} {kind}s from {found[0]} to {found[-1]}"


def lines(report: Mapping[str, Any]) -> bytes:
    """Time against the number of elements, one line per op, both axes logarithmic."""
    plt = _pyplot()
    figure, axes = plt.subplots(figsize=(8, 5.5), layout="constrained")
    by_op: dict[str, list[tuple[int, float]]] = {}
    for p in report["points"]:
        if p["study"] == "size":
            by_op.setdefault(p["op"], []).append((p["at"], p["ms"]))
    colours = plt.get_cmap("tab20").colors
    for k, (op, pairs) in enumerate(by_op.items()):
        exponent = report["exponents"]["size"].get(op)
        label = op if exponent is None else f"{op}: n^{exponent:.2f}"
        axes.loglog(*zip(*pairs, strict=True), marker="o", markersize=3, linewidth=1.2,
                    color=colours[k % 20], label=label)  # fmt: skip
    axes.set_xlabel("elements")
    axes.set_ylabel("milliseconds")
    axes.grid(True, which="major", color="#dddddd", linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=7, loc="upper left")
    axes.set_title(_title(report), fontsize=9, loc="left")
    return _png(figure)
