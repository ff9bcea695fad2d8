"""Every page keeps its word: code blocks run, shown output is real, links lead somewhere."""

from __future__ import annotations

import doctest
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import pullback
from pullback.core.catalog import OPS, unregister
from pullback.oracle import table as oracle_table

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```(python|pycon)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\[[^\]]*\]\(([^)#\s]+)(#[^)\s]*)?\)")


def page_id(page: Path) -> str:
    return str(page.relative_to(ROOT))


def blocks(page: Path) -> Iterator[tuple[str, str, int]]:
    text = page.read_text(encoding="utf-8")
    for match in BLOCK.finditer(text):
        yield match[1], match[2], text.count("\n", 0, match.start(2))


@pytest.fixture
def catalog_as_it_was():
    """A page may add ops; they are gone afterwards."""
    ops, definitions = set(OPS), set(oracle_table.names())
    yield
    for name in set(OPS) - ops:
        unregister(name)
    for name in set(oracle_table.names()) - definitions:
        del oracle_table._TABLE[name]


def failures(examples: doctest.DocTest) -> list[str]:
    shown: list[str] = []
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    runner.run(examples, out=shown.append, clear_globs=False)
    return shown


@pytest.mark.parametrize("page", [p for p in PAGES if any(blocks(p))], ids=page_id)
@pytest.mark.usefixtures("catalog_as_it_was")
def test_code_blocks_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "__main__"}
    for language, source, line in blocks(page):
        if language == "python":
            # Line numbers of a traceback are those of the page.
            exec(compile("\n" * line + source, str(page), "exec"), names)
        else:
            parser = doctest.DocTestParser()
            examples = parser.get_doctest(source, {}, page.name, str(page), line)
            assert examples.examples, f"{page.name}:{line}: a pycon block without a prompt"
            examples.globs = names
            shown = failures(examples)
            assert not shown, "".join(shown)


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_links_lead_somewhere(page: Path):
    for target, anchor in LINK.findall(page.read_text(encoding="utf-8")):
        if target.startswith(("http://", "https://")):
            continue
        found = (page.parent / target).resolve()
        assert found.exists(), f"{page.name} links to {target}, which is not there"
        if anchor:
            assert anchor[1:] in anchors(found), f"{page.name}: no heading {anchor} in {target}"


def anchors(page: Path) -> set[str]:
    """The names by which headings can be linked to."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings}


def docstring(name: str) -> str:
    return getattr(pullback, name).__doc__ or ""


@pytest.mark.parametrize("name", [n for n in pullback.__all__ if ">>>" in docstring(n)])
def test_docstring_examples(name: str):
    names = {name: getattr(pullback, name)}
    shown = failures(doctest.DocTestParser().get_doctest(docstring(name), names, name, None, 0))
    assert not shown, "".join(shown)


def test_every_function_shows_an_example():
    assert [n for n in OPS if ">>>" not in docstring(n)] == []
