"""Sphinx configuration: `make docs` builds the site into build/docs. Pages are Markdown, and read well without it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from docutils import nodes
from docutils.statemachine import StringList
from sphinx.directives.patches import MathDirective

import plmu

ROOT = Path(__file__).parents[1]

project = "plmu"
author = "The plmu developers"
copyright = f"2026, {author}"
version = release = plmu.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.mathjax",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
]
exclude_patterns = ["images"]
html_theme = "furo"
html_static_path = ["static"]
html_css_files = ["wide.css"]
html_title = f"plmu {version}"

myst_enable_extensions = ["dollarmath"]
myst_fence_as_directive = ["math"]
myst_heading_anchors = 3
myst_dmath_double_inline = True

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
default_role = "py:obj"  # names in single backquotes are links where they are known, and code where not
napoleon_use_rtype = False
python_maximum_signature_line_length = 100


class DisplayedMath(MathDirective):
    r"""A formula as it is written. Sphinx would put those with several lines into `split`, which allows no \tag."""

    def run(self) -> list[nodes.Node]:
        self.options["no-wrap"] = True
        self.content = StringList(["\\[", *self.content, "\\]"])
        return super().run()


PAGES = {
    "index": "README.md",
    "changelog": "CHANGELOG.md",
    "contributing": "CONTRIBUTING.md",
    "security": "SECURITY.md",
}
PLACES = {file: f"{page}.md" for page, file in PAGES.items()}


def from_the_root(app: Any, page: str, source: list[str]) -> None:
    """Put a file of the repository's root in front of its page, with its links as they are seen from docs/."""
    if page in PAGES:
        app.env.note_dependency(str(ROOT / PAGES[page]))
        text = (ROOT / PAGES[page]).read_text(encoding="utf-8")
        source[0] = re.sub(r"(?<=\]\()(?!\w+:|#)[^)]+(?=\))", _from_docs, text) + "\n" + source[0]


def _from_docs(link: re.Match[str]) -> str:
    return PLACES.get(link[0]) or (link[0].removeprefix("docs/") if link[0].startswith("docs/") else f"../{link[0]}")


def formulas_as_written(app: Any, what: str, name: str, obj: object, options: object, lines: list[str]) -> None:
    """In a docstring, show an indented block after an empty line as it is: formulas, and not a quotation."""
    for i in range(len(lines) - 1, 0, -1):
        before = next((line for line in reversed(lines[:i]) if line), "")
        starts = lines[i].startswith("    ") and not lines[i - 1] and not before.startswith(" ")
        if starts and not before.endswith("::"):
            lines[i:i] = ["::", ""]


def setup(app: Any) -> None:
    app.connect("autodoc-process-docstring", formulas_as_written, priority=400)  # before the sections are parsed
    app.add_directive("math", DisplayedMath, override=True)
    app.connect("source-read", from_the_root)


napoleon_custom_sections = [("Shape", "params_style")]
