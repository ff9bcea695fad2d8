"""Figures drawn from a report: bandwidths, ratios, means, losses, and changes between two."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .load import noise_of

# Changes with the meaning of what a report holds.
SCHEMA = 1
# Cases smaller than this measure the cost of a call, not of memory, and have no share of a copy.
SMALLEST_STREAM = 1 << 18


@dataclass(frozen=True)
class Figures:
    """What a reader wants of a case.

    Attributes
    ----------
    ms, function_ms
        Time of the plan on the caller's buffer, and of the function that allocates.
    gbs, of_copy
        Useful bytes per second, in GB, and as a share of the copy; None for tiny cases.
    ratios
        Time of each peer over that of the plan.
    fastest
        The fastest peer; None without peers.
    """

    ms: float
    function_ms: float
    gbs: float
    copy_gbs: float
    of_copy: float | None
    ratios: Mapping[str, float]
    fastest: str | None

    @property
    def against_fastest(self) -> float | None:
        """Time of the fastest peer over that of the plan."""
        return self.ratios[self.fastest] if self.fastest else None

    @property
    def function_against_fastest(self) -> float | None:
        """Time of the fastest peer over that of the function."""
        ratio = self.against_fastest
        return None if ratio is None else ratio * self.ms / self.function_ms


def figures(cell: Mapping[str, Any], stat: str = "ms") -> Figures | None:
    """Figures of a case; None where its check failed or it was skipped.

    ``stat`` is "ms" (the least time over rounds) or "median_ms".
    """
    if "runs" not in cell:
        return None
    runs = {n: r[stat] for n, r in cell["runs"].items()}
    plan, copy = runs["plan"], cell["copy"][stat]
    peers = {n: t for n, t in runs.items() if n not in ("plan", "function")}
    streams = cell["bytes"] >= SMALLEST_STREAM
    return Figures(
        plan,
        runs["function"],
        cell["bytes"] / plan / 1e6,
        cell["bytes"] / copy / 1e6,
        copy / plan if streams else None,
        {n: t / plan for n, t in peers.items()},
        min(peers, key=peers.__getitem__) if peers else None,
    )


def geometric_mean(values: Iterable[float | None]) -> float | None:
    """The geometric mean of those that are there; None of nothing."""
    logs = [math.log(v) for v in values if v and v > 0]
    return math.exp(math.fsum(logs) / len(logs)) if logs else None


def summarise(cells: Sequence[Mapping[str, Any]], stat: str = "ms") -> dict[str, Any]:
    """Means over the cases, the cases lost to a peer, and those that failed their check."""
    pairs = [(c, f) for c in cells if (f := figures(c, stat)) is not None]
    peers = sorted({n for _, f in pairs for n in f.ratios})
    behind = {_name(c): f.against_fastest or 1.0 for c, f in pairs if _is_slower(c, f)}
    lost = sorted(behind, key=behind.__getitem__)
    close = [_name(c) for c, f in pairs if _below_one(f.against_fastest) and not _is_slower(c, f)]
    function_lost = [_name(c) for c, f in pairs if _below_one(f.function_against_fastest)]
    return {
        "cases": len(cells),
        "of_copy": geometric_mean(f.of_copy for _, f in pairs),
        "against": {
            n: geometric_mean(f.ratios[n] for _, f in pairs if n in f.ratios) for n in peers
        },
        "against_fastest": geometric_mean(f.against_fastest for _, f in pairs),
        "function_against_fastest": geometric_mean(f.function_against_fastest for _, f in pairs),
        "by_size": _by_size(pairs),
        "by_op": {
            op: {**_by_size(of_op), "cases": len(of_op), "lost": sum(_is_slower(*p) for p in of_op)}
            for op in dict.fromkeys(c["op"] for c, _ in pairs)
            if (of_op := [p for p in pairs if p[0]["op"] == op])
        },
        "noise": noise_of(cells),
        "lost": lost,
        "lost_by": behind,
        "close": close,
        "function_lost": function_lost,
        "failed": [_name(c) for c in cells if not c.get("check", {}).get("ok", True)],
        "skipped": [_name(c) for c in cells if "skipped" in c],
    }


def _by_size(pairs: Sequence[tuple[Mapping[str, Any], Figures]]) -> dict[str, float]:
    """Geometric means against the fastest peer, of cases that fit in the caches and of others."""
    found = {
        where: geometric_mean(f.against_fastest for c, f in pairs if c.get("within_caches") is held)
        for where, held in (("within caches", True), ("beyond", False))
    }
    return {where: mean for where, mean in found.items() if mean}


def _below_one(ratio: float | None) -> bool:
    return ratio is not None and ratio < 1


def _is_slower(cell: Mapping[str, Any], found: Figures) -> bool:
    """Whether the fastest peer takes less time, by more than both times are uncertain."""
    ratio = found.against_fastest
    if ratio is None or found.fastest is None:
        return False
    noise = sum(cell["runs"][n].get("noise") or 0.0 for n in ("plan", found.fastest))
    return ratio < 1 - noise


def key_of(cell: Mapping[str, Any]) -> tuple[str, str, str, str]:
    """What tells cases apart."""
    return cell["op"], cell["dtype"], cell["shape"], cell["axis"]


def _name(cell: Mapping[str, Any]) -> str:
    return " ".join(key_of(cell))


@dataclass(frozen=True)
class Change:
    """A case in two reports: old time over new, each as a multiple of the copy beside it."""

    key: tuple[str, str, str, str]
    old_ms: float
    new_ms: float
    speedup: float
    noise: float

    @property
    def beyond_noise(self) -> bool:
        """Whether the change exceeds what the rounds of either run varied by."""
        return abs(math.log(self.speedup)) > math.log1p(self.noise)


def objection(report: Any) -> str | None:
    """Why data, perhaps from a file, is no report that ``compare`` can read; None if it is."""
    if not isinstance(report, Mapping) or not isinstance(report.get("cells"), list):
        return "is not a report of pullback bench"
    if report.get("schema") != SCHEMA:
        return f"is a report of format {report.get('schema')!r}, not {SCHEMA}"
    for number, cell in enumerate(report["cells"], 1):
        if not _is_cell(cell):
            return f"is not a whole report: case {number} lacks its name or its times"
    return None


def _is_cell(cell: Any) -> bool:
    try:
        named = all(isinstance(part, str) for part in key_of(cell))
        if "runs" not in cell:
            return named
        times = [run[stat] for run in _timed(cell) for stat in ("ms", "median_ms")]
        times += [run["noise"] for run in _timed(cell) if run["noise"] is not None]
        return named and all(_is_time(t) for t in times) and min(times[:4]) > 0
    except (KeyError, TypeError):
        return False


def _is_time(value: Any) -> bool:
    return isinstance(value, int | float) and 0 <= value < math.inf


def compare(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[Change]:
    """Changes of the cases both reports have, the largest slowdown first.

    Times are the least over the rounds, taken relative to the copy measured in the same rounds, so
    that a machine that is slower as a whole does not count. The noise is what plan and copy varied
    by in both runs, and at least 5 %.
    """
    before = {key_of(c): c for c in old["cells"] if "runs" in c}
    changes = []
    for cell in new["cells"]:
        past = before.get(key_of(cell))
        if past is None or "runs" not in cell:
            continue
        pair = (past, cell)
        noise = max(0.05, math.hypot(*(_spread(r) for c in pair for r in _timed(c))))
        old_ms, new_ms = (c["runs"]["plan"]["ms"] for c in pair)
        scale = 1.0
        if cell["bytes"] >= SMALLEST_STREAM:
            scale = cell["copy"]["ms"] / past["copy"]["ms"]
        changes.append(Change(key_of(cell), old_ms, new_ms, old_ms * scale / new_ms, noise))
    return sorted(changes, key=lambda c: c.speedup)


def _timed(cell: Mapping[str, Any]) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    return cell["runs"]["plan"], cell["copy"]


def _spread(run: Mapping[str, Any]) -> float:
    """What the rounds varied by: the median above the least, or 1.5 quartile distances."""
    apart: float = run["median_ms"] / run["ms"] - 1
    return max(apart, 3 * (run["noise"] or 0.0))
