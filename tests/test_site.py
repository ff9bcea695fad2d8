"""The site: every page is in its lists, and the tables of names are those of the frameworks.

Building it is `make docs`, which `make test` runs too; links between pages are looked at in
`test_docs.py`.
"""

from __future__ import annotations

import ast
import json
import re
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

import pullback as pb
from pullback.core.catalog import catalog

pytestmark = pytest.mark.quick

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
sys.path.insert(0, str(ROOT / "tools"))
TOCTREE = re.compile(r"^```\{toctree\}\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def listed() -> list[str]:
    found = TOCTREE.findall((DOCS / "index.md").read_text(encoding="utf-8"))
    lines = [line.strip() for block in found for line in block.splitlines()]
    return [line for line in lines if line and not line.startswith(":")]


def test_every_page_is_in_one_list():
    pages = {p.stem for p in DOCS.glob("*.md")} - {"index"} | {"api/index", "gallery/index"}
    assert sorted(listed()) == sorted(pages)


def test_every_page_is_named_on_the_first():
    text = (DOCS / "index.md").read_text(encoding="utf-8")
    shown = set(re.findall(r"\]\((\w+)\.md\)", text))
    assert {p.stem for p in DOCS.glob("*.md")} - {"index"} <= shown


def test_reference_names_everything_public():
    import api_pages

    pages = dict(api_pages.pages())
    told = "\n".join(pages.values())
    for name in pb.__all__:
        assert re.search(rf":: pullback\.{name}$", told, re.MULTILINE), name
    assert {op.family for op in catalog()} <= set(pages)
    for front in api_pages.FRONTS:
        stub = ast.parse((api_pages.SOURCE / front / "__init__.pyi").read_text(encoding="utf-8"))
        for node in stub.body:
            if isinstance(node, ast.FunctionDef):
                assert f"pullback.{front}.{node.name}(" in pages[front]
    contents = {line.strip() for line in pages["index"].splitlines()}
    assert set(pages) - {"index"} <= contents


def test_short_tables_are_those_of_the_long_ones():
    import speed_short

    for path, text in speed_short.made().items():
        assert path.read_text(encoding="utf-8") == text, f"{path.name}: run tools/speed_short.py"
    shown = {name for name, _ in speed_short.fastest(speed_short.PAGE.read_text(encoding="utf-8"))}
    assert {"cumsum", "prod", "softmax", "lerp"} <= shown
    assert ElementTree.parse(speed_short.PICTURE).getroot().tag.endswith("svg")


def test_version_is_said_once():
    found = re.search(r"^version: (.*)$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE)
    assert found
    assert found[1] == pb.__version__
    assert f"## [{pb.__version__}]" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    badge = f"[![version {pb.__version__}](https://img.shields.io/badge/version-{pb.__version__}-"
    assert badge in (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.fixture
def names():
    pytest.importorskip("torch")
    pytest.importorskip("jax")
    import names_table

    return names_table


def test_tables_of_names_are_up_to_date(names):
    assert [p.name for p in names.stale()] == []


def test_jax_functions_have_the_defaults_of_jax(names):
    """Of arguments that both have; what the table of names says is left is the core's."""
    import pullback.jax as pj

    for kind, path in names.HOMES.items():
        theirs, ours = names.defaults(names.resolve(path)), names.defaults(getattr(pj, kind))
        assert list(names.differences(theirs, ours)) == [], kind


def test_torch_functions_have_the_defaults_of_torch(names):
    """torch's signatures are the first lines of its docstrings."""
    import pullback.torch as pt

    for kind, path in names.TORCH.items():
        function = names.resolve(path)
        lines = (function.__doc__ or "").splitlines()
        head = next((line for line in lines if line.strip()), "")
        arguments = dict(re.findall(r"(\w+)=(\w+)", head))
        has = names.COUNTERPARTS[kind]
        ours = names.defaults(getattr(pt, has.name or kind))
        for name, value in arguments.items():
            # torch's own correction is 1; here None stands for it, since unbiased may say it too.
            if names.ALIKE.get(name, name) in ours and name != "correction":
                assert str(ours[names.ALIKE.get(name, name)]) == value, (kind, name)


def test_gallery_is_what_was_measured():
    """Pages are made of what their examples printed, and no example loses to its peer."""
    pytest.importorskip("matplotlib")
    import gallery

    held = json.loads(gallery.RESULTS.read_text(encoding="utf-8"))
    assert list(gallery.FIELDS) == [f for f in gallery.FIELDS if f in held]
    for field, found in held.items():
        assert found["timings"] == gallery.timings(found["printed"])
        assert gallery.losses(found["timings"]) == []
        shown = (gallery.PAGES / f"{field}.md").read_text(encoding="utf-8")
        assert shown == gallery.page(field)
        assert (gallery.PICTURES / f"{field}.png").read_bytes().startswith(b"\x89PNG")
    index = (gallery.PAGES / "index.md").read_text(encoding="utf-8")
    assert index == gallery.index(held)
    slow = [{"what": "a step", "pullback": 2.0, "peers": {"torch": 1.0, "jax": 3.0}}]
    assert gallery.losses(slow) == ["a step: 2.0 ms, torch 1.0 ms"]
