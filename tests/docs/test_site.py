"""The site builds without a warning, fetches nothing from elsewhere, and its reference has every public name."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import fedsolve as fs
from fedsolve.methods import homes
from tests.conftest import ROOT

REFERENCE = ROOT / "docs" / "reference"
# What a browser fetches by itself when it shows a page; links to click on are not.
FETCHED = re.compile(r"""<(?:script|img|iframe)\b[^>]*\bsrc="?([^"\s>]+)|<link\b[^>]*\bhref="?([^"\s>]+)""")


def test_the_reference_has_every_public_name_once() -> None:
    text = "".join(page.read_text() for page in REFERENCE.glob("*.md"))
    names = re.findall(r"^::: fedsolve\.(\w+)$", text, re.MULTILINE)
    methods = {name for _, name in homes()}  # put there by docs/hooks/reference.py
    assert sorted(names) == sorted({*dir(fs), "laws"} - methods - {"__version__"})


def test_the_site_builds_and_stands_alone(tmp_path: Path) -> None:
    pytest.importorskip("mkdocstrings", reason="the site is not made here: pip install 'fedsolve[docs]'")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    pages = list(tmp_path.rglob("*.html"))
    assert len(pages) > 20
    for page in pages:
        for found in FETCHED.findall(page.read_text()):
            assert not re.match(r"(https?:)?//", "".join(found)), f"{page.name} fetches {''.join(found)}"
    methods = (tmp_path / "reference" / "methods.html").read_text()
    for _, name in homes():
        assert f'id="fedsolve.{name}"' in methods, f"the reference lacks {name}"
    assert "&gt;&gt;&gt; </span>" in (tmp_path / "reference" / "data.html").read_text(), "examples are not code"
