"""Write the tables of names and defaults into docs/from_*.md, between ``<!-- names -->`` markers.

What a function here is called and takes is read off the function, and so is what it takes for an
argument that is left out; NumPy's and JAX's defaults are read off theirs. Needs torch and JAX.

Usage: python tools/names_table.py [--check]
"""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pullback
import pullback.jax
import pullback.torch
from pullback.core.catalog import catalog
from pullback.jax.conventions import HOMES
from pullback.torch.counterparts import COUNTERPARTS

DOCS = Path(__file__).resolve().parents[1] / "docs"
BEGIN, END = "<!-- names:begin -->", "<!-- names:end -->"

# Where NumPy keeps what the catalog has; of torch and JAX their front ends know it.
NUMPY = {
    "cumsum": "numpy.cumsum",
    "cumprod": "numpy.cumprod",
    "cummax": "numpy.maximum.accumulate",
    "cummin": "numpy.minimum.accumulate",
    "logcumsumexp": "numpy.logaddexp.accumulate",
    "sum": "numpy.sum",
    "mean": "numpy.mean",
    "max": "numpy.max",
    "min": "numpy.min",
    "prod": "numpy.prod",
    "norm2": "numpy.linalg.norm",
    "logsumexp": "numpy.logaddexp.reduce",
    "var": "numpy.var",
    "std": "numpy.std",
}
TORCH = {kind: has.homes[0] for kind, has in COUNTERPARTS.items() if has.homes}

# Arguments that mean the same.
ALIKE = {
    "dim": "axis",
    "keepdim": "keepdims",
    "ddof": "correction",
    "indices_are_sorted": "sorted",
}
REQUIRED = "required"


def resolve(path: str) -> Callable[..., Any]:
    """The function of a dotted name."""
    parts = path.split(".")
    for k in range(len(parts) - 1, 0, -1):
        try:
            found: Any = importlib.import_module(".".join(parts[:k]))
        except ImportError:
            continue
        for part in parts[k:]:
            found = getattr(found, part)
        return found  # type: ignore[no-any-return]
    raise ImportError(path)


def defaults(function: Callable[..., Any]) -> dict[str, Any]:
    """What a function takes for arguments that are left out, by our names for them."""
    found: dict[str, Any] = {}
    for name, p in inspect.signature(function).parameters.items():
        if repr(p.default) == "<no value>":
            continue
        # The older of two names for one thing has the value.
        found.setdefault(ALIKE.get(name, name), REQUIRED if p.default is p.empty else p.default)
    return found


def differences(theirs: dict[str, Any], ours: dict[str, Any]) -> Iterator[str]:
    """Defaults that differ between functions, of arguments that both have."""
    operands = ("a", "b", "x", "input", "data", "array", "out", "weight", "segment_ids")
    for name, value in theirs.items():
        if name not in ours or name in operands or ours[name] == value:
            continue
        # A correction of None says that another argument has it.
        if (name, value) != ("correction", None):
            yield f"`{name}`: {said(value)}, in `pb` {said(ours[name])}"


def said(value: Any) -> str:
    return REQUIRED if value is REQUIRED else f"`{value!r}`"


def signature(function: Callable[..., Any]) -> str:
    return str(inspect.signature(function).replace(return_annotation=inspect.Signature.empty))


def kinds() -> list[str]:
    return list(dict.fromkeys(op.kind for op in catalog()))


def from_front(names: dict[str, str], module: Any, short: str) -> Iterator[tuple[str, ...]]:
    """Lines on a front end: the framework's function, ours, and where the core's defaults differ.

    Kinds that the framework does not have are left out.
    """
    for kind in kinds():
        if kind not in names:
            continue
        has = COUNTERPARTS.get(kind) if module is pullback.torch else None
        called = (has.name if has else None) or kind
        front, core = getattr(module, called), getattr(pullback, kind)
        # Ties concern the gradient: the core's functions take them in the backward.
        backward = getattr(pullback, f"{kind}_backward")
        ours = defaults(core) | {n: v for n, v in defaults(backward).items() if n == "ties"}
        theirs = defaults(front)
        if has is not None and has.needs_dim:
            theirs["axis"] = REQUIRED
        told = "; ".join(differences(theirs, ours))
        yield f"`{names[kind]}`", f"`{short}.{called}{signature(front)}`", f"`pb.{kind}`", told


def from_numpy() -> Iterator[tuple[str, ...]]:
    for kind in kinds():
        if kind in NUMPY:
            core = getattr(pullback, kind)
            told = "; ".join(differences(defaults(resolve(NUMPY[kind])), defaults(core)))
            yield f"`{NUMPY[kind]}`", f"`pb.{kind}{signature(core)}`", told


def table(*rows: tuple[str, ...]) -> str:
    lines = [rows[0], tuple("---" for _ in rows[0]), *rows[1:]]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def tables() -> dict[str, str]:
    """The table of each page."""
    differ = "defaults of `pb` that differ"
    return {
        "from_torch": table(
            ("PyTorch", "`pullback.torch`", "`pullback`", differ),
            *from_front(TORCH, pullback.torch, "pt"),
        ),
        "from_jax": table(
            ("JAX", "`pullback.jax`", "`pullback`", differ),
            *from_front(HOMES, pullback.jax, "pj"),
        ),
        "from_numpy": table(("NumPy", "`pullback`", "defaults that differ"), *from_numpy()),
    }


def stale() -> dict[Path, str]:
    """Pages that are not what they should be, with what they should be."""
    found = {}
    for name, made in tables().items():
        page = DOCS / f"{name}.md"
        text = page.read_text(encoding="utf-8")
        head, _, rest = text.partition(BEGIN)
        new = f"{head}{BEGIN}\n\n{made}\n\n{END}{rest.partition(END)[2]}"
        if new != text:
            found[page] = new
    return found


def main() -> int:
    found = stale()
    if "--check" in sys.argv[1:]:
        if found:
            names = ", ".join(p.name for p in found)
            print(f"out of date: {names}; run python tools/names_table.py", file=sys.stderr)
        return bool(found)
    for page, text in found.items():
        page.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
