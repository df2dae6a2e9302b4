"""The table of rooms in CONTRIBUTING.md, from the first sentence of each room's docstring: `python -m tests.rooms`."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "plmu"
PAGE = ROOT / "CONTRIBUTING.md"
BEGIN, END = "<!-- rooms: begin -->\n", "<!-- rooms: end -->"


def rooms() -> list[Path]:
    """The packages in src/plmu, then its modules; each as the file that has its docstring."""
    packages = sorted(PACKAGE.glob("*/__init__.py"))
    return [*packages, *sorted(path for path in PACKAGE.glob("*.py") if not path.name.startswith("__"))]


def first_sentence(path: Path) -> str:
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    sentence = re.match(r".*?\.(?=\s|$)", text, re.DOTALL)
    return " ".join(sentence[0].split()).rstrip(".").replace("|", r"\|") if sentence else ""


def table() -> str:
    rows = ["| `src/plmu/` | what it holds |", "|---|---|"]
    for path in rooms():
        name = path.name if path.parent == PACKAGE else f"{path.parent.name}/"
        rows.append(f"| `{name}` | {first_sentence(path)} |")
    return "\n".join(rows) + "\n"


def filled(page: str) -> str:
    begin, end = page.index(BEGIN) + len(BEGIN), page.index(END)
    return page[:begin] + table() + page[end:]


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
