"""What the reference pages take from the code: the methods of the catalogue, and docstrings made ready for Markdown."""

from __future__ import annotations

import importlib
import re
from typing import Any

import griffe

from fedsolve import parameters
from fedsolve.methods import homes

# From `>>>` to the next empty line, as doctest reads it.
EXAMPLE = re.compile(r"^>>> .*?(?=\n\s*\n|\Z)", re.MULTILINE | re.DOTALL)
METHODS = "<!-- methods of the catalogue -->"


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Put one entry per method of the catalogue in place of the comment that asks for them."""
    entries = (f"::: fedsolve.{name}\n    options:\n      members: false" for _, name in homes())
    return markdown.replace(METHODS, "\n\n".join(entries))


class Docstrings(griffe.Extension):
    """Rewrites docstrings as they are collected; the source stays as it is."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        """Put examples between fences: Markdown would take `>>>` for a quotation."""
        if obj.docstring is not None:
            obj.docstring.value = EXAMPLE.sub(lambda example: f"```pycon\n{example[0]}\n```", obj.docstring.value)

    def on_class_members(self, *, cls: griffe.Class, **_: Any) -> None:
        """Put a table behind the text of a class: the settings of a method, the fields of any other dataclass."""
        if cls.docstring is None:
            return
        module, _, name = cls.path.rpartition(".")
        if (module, name) in homes():
            said = cls.module.docstring.value if cls.module.docstring else ""
            cls.docstring.value = f"{said}\n\n{cls.docstring.value}{_settings(module, name)}"
        elif "dataclass" in cls.labels:
            cls.docstring.value += _fields(cls)


def _settings(module: str, name: str) -> str:
    """The settings of a method. A family may have declared them, so the class itself is asked."""
    declared = parameters.declared(getattr(importlib.import_module(module), name))
    rows = [(f"`{each}`", f"`{default}`", domain.describe(), domain.doc) for each, default, domain in declared]
    return _table(("setting", "default", "values", "meaning"), rows)


def _fields(cls: griffe.Class) -> str:
    """The fields of a dataclass, with what the comment behind each of them says."""
    lines = cls.module.lines
    rows = []
    for name, member in cls.members.items():
        if member.is_attribute and not name.startswith("_") and "property" not in member.labels and member.annotation:
            comment = lines[member.endlineno - 1].partition("  # ")[2]
            rows.append((f"`{name}`", f"`{member.annotation}`", comment))
    return _table(("field", "type", "meaning"), rows)


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    """A Markdown table with an empty line before it; nothing where there are no rows."""
    lines = [head, ("---",) * len(head), *rows]
    return "\n\n" + "\n".join(f"| {' | '.join(line)} |" for line in lines) if rows else ""
