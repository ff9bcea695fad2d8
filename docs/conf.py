"""How the site is built: `make docs`, which fails on any warning."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tools")]

import api_pages  # noqa: E402
import pullback  # noqa: E402

project = "pullback"
author = "pullback contributors"
project_copyright = author
version = release = pullback.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
]
exclude_patterns = ["_build"]

myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence"]
# Files of the repository that are pages of the site under another name.
PAGES = {
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "README.md": "index.md",
}

# Prompts and outputs are not copied.
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True

autodoc_member_order = "bysource"
autodoc_typehints = "none"
napoleon_google_docstring = False
napoleon_use_rtype = False
napoleon_use_ivar = True

html_theme = "furo"
html_title = f"pullback {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sphinx = False
pygments_style = "friendly"
pygments_dark_style = "monokai"

linkcheck_anchors = False


def write_reference(app):
    """Write the pages of the reference before pages are looked for."""
    api_pages.write(Path(app.srcdir) / "api")


def read_reference_again(app, env, added, changed, removed):
    """Docstrings come from rows of the catalog, which Sphinx does not know to look at."""
    return [page for page in env.found_docs if page.startswith("api/")]


def link_within(app, name, source):
    """Lead links to files of the repository to the pages that show them."""
    for there, here in PAGES.items():
        source[0] = source[0].replace(f"](../{there}", f"]({here}")


def setup(app):
    """Connect all of this."""
    app.connect("builder-inited", write_reference)
    app.connect("env-get-outdated", read_reference_again)
    app.connect("source-read", link_within)
