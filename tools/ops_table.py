"""Write the tables of ops and calls into README.md and docs/*.md, between their markers.

``<!-- ops:begin -->`` to ``<!-- ops:end -->`` holds formulas, saves and edge rules, ``calls`` the
signatures, ``families`` the names alone. A page named after a family gets the ops of that family,
any other page all of them.

Usage: python tools/ops_table.py [--check]
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from pathlib import Path

import pullback
from pullback.core.catalog import catalog, kinds
from pullback.core.declare import Op
from pullback.core.pair import pair_of

ROOT = Path(__file__).resolve().parents[1]
FAMILIES = tuple(dict.fromkeys(op.family for op in catalog()))


def table(header: tuple[str, ...], rows: Iterator[tuple[str, ...]]) -> str:
    lines = [header, tuple("---" for _ in header), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def saves(op: Op) -> str:
    return ", ".join(f"`{n}`" for n in sorted(op.needs.difference(op.spared))) or "nothing"


def edges(forward: Op, backward: Op | None) -> str:
    """The edge rules of both directions; those of the backward say so where they are others."""
    there, back = ([e for e in op.edges.split("; ") if e] for op in (forward, backward or forward))
    own = [e for e in back if e not in there]
    return "; ".join([*there, *([f"backward: {'; '.join(own)}"] if own else [])])


def ops(families: tuple[str, ...]) -> str:
    def rows() -> Iterator[tuple[str, ...]]:
        for kind in (k for family in families for k in kinds(family)):
            there, back = pair_of(kind).forward, pair_of(kind).backward
            gradient = (back.formula, saves(back)) if back else ("none", "nothing")
            yield (f"`{kind}`", there.formula, *gradient, edges(there, back))

    return table(("op", "forward", "backward", "saves", "edges"), rows())


def calls(families: tuple[str, ...]) -> str:
    lines = (
        f"{op.name}{inspect.signature(getattr(pullback, op.name))}"
        for op in catalog()
        if op.family in families
    )
    return "\n".join(["```text", *lines, "```"])


def names(families: tuple[str, ...]) -> str:
    rows = ((family, ", ".join(f"`{kind}`" for kind in kinds(family))) for family in families)
    return table(("family", "ops"), rows)


TABLES = {"ops": ops, "calls": calls, "families": names}


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
