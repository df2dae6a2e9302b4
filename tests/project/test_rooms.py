"""The pages that show the plan of the code name every room, and only files that are there."""

import re

import pytest
import rooms


def test_the_table_of_rooms_is_made_from_their_docstrings() -> None:
    page = rooms.PAGE.read_text(encoding="utf-8")
    assert rooms.filled(page) == page, "run: python -m tests.rooms"


@pytest.mark.parametrize("path", rooms.rooms(), ids=lambda path: path.relative_to(rooms.PACKAGE).as_posix())
def test_a_room_says_what_it_holds(path: rooms.Path) -> None:
    assert len(rooms.first_sentence(path)) > 10, f"{path} needs a docstring"


def test_the_page_on_architecture_names_every_room() -> None:
    page = (rooms.ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    named = set(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE))
    assert named == {path.parent.name for path in rooms.rooms() if path.parent != rooms.PACKAGE} | {"clock", "errors"}


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "docs/architecture.md"])
def test_named_files_are_there(page: str) -> None:
    """Files and functions in backquotes, relative to src/plmu or the root: `ops/plan.py`, `ops/plan.py: plan`."""
    text = (rooms.ROOT / page).read_text(encoding="utf-8")
    named = re.findall(r"`([\w./-]+\.(?:py|md|toml|txt)|(?:\w+/)+)(?:: ([\w., ]+))?`", text)
    assert len(named) > 15
    for file, names in named:
        path = next((folder / file for folder in (rooms.PACKAGE, rooms.ROOT) if (folder / file).exists()), None)
        assert path is not None, f"{page}: there is no {file}"
        for name in names.split(", ") if names else []:
            last = name.split(".")[-1]
            assert re.search(rf"\b(?:def|class) {last}\b|^{last} = ", path.read_text(encoding="utf-8"), re.M), (
                f"{page}: {file}: there is no {name}"
            )
