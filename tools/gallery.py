"""Run examples and write a page for each into docs/gallery: what it shows, a plot, what it printed.

The figures are those of the run that made the page. A page is not written where an example prints a
time that is longer than that of what it is compared with.

Usage: python tools/gallery.py [PAGE ...]
"""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot

from pullback import __version__
from pullback.tools.bench.machine import describe

ROOT = Path(__file__).resolve().parents[1]
PAGES, PICTURES = ROOT / "docs" / "gallery", ROOT / "docs" / "_static" / "gallery"
RESULTS = PAGES / "results.json"
OURS, OTHER = "#1f5fa8", "#e07b39"

# The page of a field, its example and its title.
FIELDS = {
    "reinforcement": ("ppo_advantages", "Reinforcement learning: advantages of a rollout"),
    "state_space": ("state_space_torch", "State-space models: a gated recurrence"),
    "rendering": ("volume_rendering_jax", "Rendering: light along rays"),
    "survival": ("cox_regression_torch", "Survival analysis: Cox regression by strata"),
    "graphs": ("graph_attention_torch", "Graphs: attention over edges"),
    "ranking": ("listmle_torch", "Ranking: the likelihood of an order"),
    "attention": ("masked_attention_torch", "Attention: sequences of different lengths"),
}

# "what: pullback 1.20 ms, torch 3.40 ms (2.8 times), Python 9 ms (7.5 times)"
TIMED = re.compile(r"^(?P<what>.*): pullback (?P<ours>[\d.]+) ms, (?P<rest>.*)$")
PEER = re.compile(r"(?P<name>[^,()]+?) (?P<ms>[\d.]+) ms \((?P<times>[\d.]+) times\)")
STEP = re.compile(r"^(?:step|round)\s+(\d+)\s+(?:loss|mean reward) ([-\d.]+)")


def run(example: str) -> str:
    """What an example prints."""
    command = [sys.executable, str(ROOT / "examples" / f"{example}.py")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{example}: exit {done.returncode}\n{done.stderr}")
    return done.stdout


def timings(printed: str) -> list[dict[str, Any]]:
    """What was compared, with the milliseconds of each."""
    found = []
    for line in printed.splitlines():
        said = TIMED.match(line)
        if said:
            peers = {p["name"].strip(): float(p["ms"]) for p in PEER.finditer(said["rest"])}
            found.append({"what": said["what"], "pullback": float(said["ours"]), "peers": peers})
    return found


def losses(found: list[dict[str, Any]]) -> list[str]:
    """Comparisons that pullback does not win."""
    return [
        f"{t['what']}: {t['pullback']} ms, {name} {ms} ms"
        for t in found
        for name, ms in t["peers"].items()
        if ms < t["pullback"]
    ]


def plot(printed: str, found: list[dict[str, Any]], path: Path) -> None:
    """How the example learns, and the times beside each other."""
    steps = [tuple(map(float, s.groups())) for s in map(STEP.match, printed.splitlines()) if s]
    figure, (left, right) = pyplot.subplots(
        1, 2, figsize=(9, 3.2), layout="constrained", width_ratios=(1, 1.4)
    )
    left.plot(*zip(*steps, strict=True), color=OURS, marker="o", markersize=3)
    is_reward = "mean reward" in printed
    left.set_xlabel("round" if is_reward else "step")
    left.set_title("mean reward" if is_reward else "loss", loc="left", fontsize=10)
    at = 0.0
    for t in found:
        right.text(0, at, t["what"], fontsize=9, va="center")
        longest = max(t["peers"].values())
        for name, ms in {"pullback": t["pullback"], **t["peers"]}.items():
            at += 1.0
            right.barh(at, ms / longest, color=OURS if name == "pullback" else OTHER, height=0.8)
            right.text(ms / longest + 0.01, at, f"{name} {ms:g} ms", fontsize=8, va="center")
        at += 1.4
    right.set_xlim(0, 1.45)
    right.invert_yaxis()
    right.set_axis_off()
    for axes in (left,):
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=130)
    pyplot.close(figure)


def gain(found: list[dict[str, Any]]) -> str:
    """The gains in a sentence."""
    parts = []
    for t in found:
        fastest = min(t["peers"], key=lambda n: t["peers"][n])
        times = t["peers"][fastest] / t["pullback"]
        parts.append(f"{t['what']}: {times:.1f} times as fast as {fastest}")
    return "; ".join(parts)


def machine() -> str:
    here: dict[str, Any] = describe()
    names = ("numpy", "torch", "jax")
    versions = ", ".join(f"{n} {v}" for n, v in here["libraries"].items() if n in names and v)
    return f"{here['cpu']}, {here['cores']} cores; pullback {__version__}, {versions}"


def page(field: str) -> str:
    """The page of a field, from its results."""
    example, title = FIELDS[field]
    held = json.loads(RESULTS.read_text(encoding="utf-8"))[field]
    source = (ROOT / "examples" / f"{example}.py").read_text(encoding="utf-8")
    told = ast.get_docstring(ast.parse(source)) or ""
    told = re.sub(r"\n\n    python \S+$", "", told)
    return (
        f"# {title}\n\n{told}\n\n![{title}](../_static/gallery/{field}.png)\n\n"
        f"Measured when this page was built: {gain(held['timings'])}. ({held['machine']}; "
        f"{held['when']}.)\n\n```text\n{held['printed'].rstrip()}\n```\n\n"
        f"`examples/{example}.py`:\n\n```{{literalinclude}} ../../examples/{example}.py\n"
        f":language: python\n:start-at: from __future__\n```\n"
    )


def index(held: dict[str, Any]) -> str:
    rows = [
        f"| [{title}]({field}.md) | {gain(held[field]['timings'])} |"
        for field, (_, title) in FIELDS.items()
        if field in held
    ]
    listed = "\n".join(field for field in FIELDS if field in held)
    return (
        "# Gallery\n\nOne worked example per field. Each one learns something and is compared with "
        "the usual way of doing it,\nboth in its results and in time. The scripts are in "
        "`examples/` and run in the tests; `tools/gallery.py` made\nthese pages and the "
        "measurements on them.\n\n"
        "| example | measured |\n|---|---|\n"
        + "\n".join(rows)
        + f"\n\n```{{toctree}}\n:hidden:\n\n{listed}\n```\n"
    )


def main() -> int:
    wanted = sys.argv[1:] or list(FIELDS)
    held = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    PICTURES.mkdir(parents=True, exist_ok=True)
    lost = False
    for field in wanted:
        printed = run(FIELDS[field][0])
        found = timings(printed)
        if not found:
            raise SystemExit(f"{field}: printed no times")
        for line in losses(found):
            lost = True
            print(f"{field} loses: {line}", file=sys.stderr)
        if losses(found):
            continue
        when = datetime.now(timezone.utc).date().isoformat()
        held[field] = {"printed": printed, "timings": found, "machine": machine(), "when": when}
        RESULTS.write_text(json.dumps(held, indent=1) + "\n", encoding="utf-8")
        plot(printed, found, PICTURES / f"{field}.png")
        (PAGES / f"{field}.md").write_text(page(field), encoding="utf-8")
        (PAGES / "index.md").write_text(index(held), encoding="utf-8")
        print(f"{field}: {gain(found)}")
    return int(lost)


if __name__ == "__main__":
    sys.exit(main())
