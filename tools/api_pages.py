"""Write the API reference of the site, a page for each family and front end.

What a page says comes from docstrings, which come from the catalog; those of the front ends from
their stubs, so that neither torch nor JAX is needed to build the site.

Usage: python tools/api_pages.py FOLDER
"""

from __future__ import annotations

import ast
import enum
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import pullback
from pullback.core.catalog import OPS, catalog

SOURCE = Path(pullback.__file__).resolve().parent
TITLES = {
    "scan": "Scans",
    "reduce": "Reductions",
    "softmax": "Softmax",
    "lerp": "Lerp",
    "binary": "Blends",
    "segment": "Segments",
    "recurrence": "Recurrences",
    "loss": "Losses",
}
FRONTS = {
    "torch": "Functions of pullback.torch",
    "jax": "Functions of pullback.jax",
}


def titled(title: str, *parts: str) -> str:
    return "\n\n".join([f"{title}\n{'=' * len(title)}", *parts]) + "\n"


def directive(kind: str, argument: str, body: str = "", options: Iterable[str] = ()) -> str:
    lines = [f".. {kind}:: {argument}", *(f"   {o}" for o in options), ""]
    lines += [f"   {line}".rstrip() for line in body.splitlines()]
    return "\n".join(lines).rstrip()


def family_page(family: str) -> str:
    named = [op.name for op in catalog() if op.family == family]
    listed = ", ".join(f":func:`~pullback.{name}`" for name in named)
    functions = (directive("autofunction", f"pullback.{name}") for name in named)
    return titled(TITLES.get(family, family.capitalize()), listed, *functions)


def plans_page() -> str:
    """Descriptors, plans and all that is neither a function nor an error."""
    parts = []
    for name in pullback.__all__:
        value = getattr(pullback, name)
        if name in OPS or (isinstance(value, type) and issubclass(value, Exception)):
            continue
        if not isinstance(value, type):
            parts.append(directive("autofunction", f"pullback.{name}"))
        elif issubclass(value, enum.Enum):
            parts.append(directive("autoclass", f"pullback.{name}", "", [":no-index-entry:"]))
            parts[-1] += "\n\n   " + ", ".join(f"``{m.value!r}``" for m in value)
        else:
            options = [":members:"] if name in ("Plan", "Descriptor", "TensorRef") else []
            # A plan holds the class of its descriptor, which has an entry of its own.
            options += [":exclude-members: Descriptor"] if name == "Plan" else []
            parts.append(directive("autoclass", f"pullback.{name}", "", options))
    return titled("Plans and the rest", *parts)


def errors_page() -> str:
    errors = [n for n in pullback.__all__ if n.endswith("Error")]
    return titled("Errors", *(directive("autoexception", f"pullback.{n}") for n in errors))


def front_page(name: str) -> str:
    """The functions of a front end, by its stub."""
    module = ast.parse((SOURCE / name / "__init__.pyi").read_text(encoding="utf-8"))
    return titled(FRONTS[name], *front_functions(name, module), *written_by_hand(name, module))


def front_functions(name: str, module: ast.Module, *only: str) -> Iterator[str]:
    """The public functions of a module, or some of them."""
    defined = [n for n in module.body if isinstance(n, ast.FunctionDef)]
    # One of several forms has the docstring; of its sections the page has no need.
    docs = {n.name: ast.get_docstring(n) for n in defined if ast.get_docstring(n)}
    told = ""
    for node in defined:
        if node.name.startswith("_") or (only and node.name not in only):
            continue
        is_again = node.name == told
        told = node.name
        returned = f" -> {ast.unparse(node.returns)}" if node.returns else ""
        signature = f"pullback.{name}.{node.name}({ast.unparse(node.args)}){returned}"
        body = "" if is_again else re.split(r"\n\n\w+\n---", docs.get(node.name) or "")[0]
        yield directive("py:function", signature, body, [":no-index:"] if is_again else [])


def written_by_hand(name: str, stub: ast.Module) -> Iterator[str]:
    """Functions that a stub takes from modules beside it, and those modules."""
    for node in stub.body:
        if not isinstance(node, ast.ImportFrom) or node.level != 1:
            continue
        names = [a.name for a in node.names]
        for module in [node.module] if node.module else names:
            source = ast.parse((SOURCE / name / f"{module}.py").read_text(encoding="utf-8"))
            if node.module:
                yield from front_functions(name, source, *names)
            else:
                yield from front_functions(f"{name}.{module}", source)


def pages() -> Iterator[tuple[str, str]]:
    """Names of pages and what is on them."""
    families = list(dict.fromkeys(op.family for op in catalog()))
    for family in families:
        yield family, family_page(family)
    yield "plans", plans_page()
    yield "errors", errors_page()
    for name in FRONTS:
        yield name, front_page(name)
    listed = "\n".join([*families, "plans", "errors", *FRONTS])
    yield (
        "index",
        titled(
            "API reference",
            "Every public name, from its docstring. :doc:`/ops` has all formulas in one table.",
            directive("toctree", "", listed, [":maxdepth: 1"]),
            "`pullback`, `pullback.torch` and `pullback.jax` have stubs: an editor shows the same.",
        ),
    )


def write(folder: Path) -> None:
    """Write the pages that changed into a folder, and remove those of families that are gone."""
    folder.mkdir(exist_ok=True)
    made = {f"{name}.rst": text for name, text in pages()}
    for stale in {p.name for p in folder.glob("*.rst")} - set(made):
        (folder / stale).unlink()
    for name, text in made.items():
        path = folder / name
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
