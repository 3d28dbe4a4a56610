"""The table of rooms names the modules there are, and no other; pages name tests that are there."""

from __future__ import annotations

import re

from tests.conftest import ROOT

PACKAGE = ROOT / "src" / "fedsolve"
ROW = re.compile(r"^\| `([\w/.]+)` \| (.+) \|$", re.MULTILINE)


def test_rooms_name_the_modules_that_are_there_and_no_other() -> None:
    table = (ROOT / "docs" / "architecture.md").read_text().partition("## Rooms")[2].partition("\n## ")[0]
    named = set()
    for room, text in ROW.findall(table):
        if room.endswith(".py"):
            named.add(room)
        else:
            named |= {room + module for module in re.findall(r"`(\w+\.py)`", text)}
    app = {"deploy/server.py", "deploy/client.py"}  # the app that is copied, named in the row of its room
    files = {str(path.relative_to(PACKAGE)) for path in PACKAGE.rglob("*.py") if not path.name.startswith("__")}
    files = {name for name in files if not name.startswith(("methods/", "deploy/templates/"))}
    assert named - app == files


def test_pages_name_tests_that_are_there() -> None:
    pages = [*(ROOT / "docs").glob("*.md"), *ROOT.glob("*.md")]
    named = {name for page in pages for name in re.findall(r"\btests/[\w/]+\.py\b", page.read_text())}
    assert len(named) > 10
    assert [name for name in sorted(named) if not (ROOT / name).is_file() and "NAME" not in name] == []
