"""The help of every command, as a user reads it."""

from __future__ import annotations

import re
from typing import Any

import pytest
import typer

from fedsolve import cli
from tests.runtime.test_cli import Command


def commands(group: Any, words: tuple[str, ...] = ()) -> dict[tuple[str, ...], Any]:
    """Every command and group by the words that call it."""
    below = {words: group}
    for name, each in getattr(group, "commands", {}).items():
        below |= commands(each, (*words, name))
    return below


EVERY = commands(typer.main.get_command(cli.app))


def test_all_commands_are_looked_at() -> None:
    assert {("run",), ("compare",), ("predict",), ("deploy", "init"), ("ledger", "add"), ()} <= EVERY.keys()


@pytest.mark.parametrize("words", EVERY, ids=" ".join)
def test_help_has_no_escapes_and_says_what_is_required(command: Command, words: tuple[str, ...]) -> None:
    done = command(*words, "--help")
    assert (done.code, done.err) == (0, "")
    assert "\\" not in done.out
    needed = [each for each in EVERY[words].params if each.required]
    assert done.out.count("[required]") == len(needed)


@pytest.mark.parametrize("words", EVERY, ids=" ".join)
def test_every_option_and_argument_says_what_it_is_for(
    command: Command, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    help = " ".join(command(*words, "--help").out.split())
    assert help.lower().count("arguments:") <= 1
    for each in EVERY[words].params:
        if each.param_type_name == "argument":
            name = each.make_metavar(None)
            assert re.search(rf"Arguments:.* {re.escape(name)} (?!\[required\])", help), name
        else:
            assert each.help, f"{' '.join(words)} {each.name}"
