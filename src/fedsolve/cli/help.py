"""Help texts as they are meant, where typer and click between them lose something."""

from __future__ import annotations

from typing import Any, get_type_hints

import typer
from typer.core import TyperCommand, TyperGroup
from typer.models import ArgumentInfo


class _Command(TyperCommand):
    def get_help(self, ctx: Any) -> str:
        _restore_arguments(self)
        return _unescaped(super().get_help(ctx))

    def format_arguments(self, ctx: Any, formatter: Any) -> None:
        """Nothing: since click 8.5 they have a section here, and typer has one for them among the options."""


class _Group(TyperGroup):
    def get_help(self, ctx: Any) -> str:
        return _unescaped(super().get_help(ctx))


def _unescaped(text: str) -> str:
    """Without the backslash that typer puts before `[required]` for rich, although no markup is asked for."""
    return text.replace("\\[", "[")


def _restore_arguments(command: Any) -> None:
    """Give arguments their help again: since click 8.5 they have one, and forget that of typer."""
    hints = get_type_hints(command.callback, include_extras=True)
    for parameter in command.params:
        for extra in getattr(hints.get(parameter.name), "__metadata__", ()):
            if isinstance(extra, ArgumentInfo):
                parameter.help = extra.help


def with_plain_help(app: typer.Typer) -> None:
    """Let an app and all commands below it show their help as it was written."""
    app.info.cls = _Group
    for command in app.registered_commands:
        command.cls = _Command
    for group in app.registered_groups:
        if group.typer_instance is not None:
            with_plain_help(group.typer_instance)
