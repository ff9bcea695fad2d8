"""Write the tables of ops and calls into README.md and docs/*.md, between their markers.

``<!-- ops:begin -->`` to ``<!-- ops:end -->`` holds formulas, saves and edge rules, ``calls`` the
signatures. A page named after a family gets the ops of that family, any other page all of them.

Usage: python tools/ops_table.py [--check]
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from pathlib import Path

import pullback
from pullback.core.catalog import catalog, find, kinds
from pullback.core.declare import Op

ROOT = Path(__file__).resolve().parents[1]
FAMILIES = tuple(dict.fromkeys(op.family for op in catalog()))


def table(header: tuple[str, ...], rows: Iterator[tuple[str, ...]]) -> str:
    lines = [header, tuple("---" for _ in header), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def saves(op: Op) -> str:
    return ", ".join(f"`{n}`" for n in sorted(op.needs)) or "nothing"


def edges(forward: Op, backward: Op) -> str:
    return "; ".join(dict.fromkeys(e for e in (forward.edges, backward.edges) if e))


def ops(families: tuple[str, ...]) -> str:
    def rows() -> Iterator[tuple[str, ...]]:
        for family in families:
            for kind in kinds(family):
                there, back = find(kind, "forward"), find(kind, "backward")
                yield (
                    f"`{kind}`",
                    there.formula,
                    back.formula,
                    saves(back),
                    edges(there, back),
                )

    return table(("op", "forward", "backward", "saves", "edges"), rows())


def calls(families: tuple[str, ...]) -> str:
    lines = (
        f"{op.name}{inspect.signature(getattr(pullback, op.name))}"
        for op in catalog()
        if op.family in families
    )
    return "\n".join(["```text", *lines, "```"])


TABLES = {"ops": ops, "calls": calls}


def filled(text: str, stem: str) -> str:
    """The page with every marked table written anew."""
    families = (stem,) if stem in FAMILIES else FAMILIES
    for name, make in TABLES.items():
        begin, end = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
        head, *marked = text.split(begin)
        body = f"{begin}\n\n{make(families)}\n\n{end}"
        text = head + "".join(body + part.split(end, 1)[1] for part in marked)
    return text


def main() -> int:
    check = "--check" in sys.argv[1:]
    stale = []
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))):
        text = page.read_text(encoding="utf-8")
        new = filled(text, page.stem)
        if new != text:
            stale.append(page.name)
            if not check:
                page.write_text(new, encoding="utf-8")
    if check and stale:
        print(f"out of date: {', '.join(stale)}; run python tools/ops_table.py", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
