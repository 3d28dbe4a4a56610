"""Settings are declared once: the command line, files and the printed command all follow the declaration."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from typing import Any

import pytest
import typer

from fedsolve import cli
from fedsolve.errors import FedsolveError
from fedsolve.study import settings
from fedsolve.study.settings import Settings
from tests.runtime.test_cli import Command, figures

# A value of each setting that is not its default, as it is written on the command line.
OTHER = {
    "method": "afl", "set": "shrink=2", "data": "synthetic:1,1", "limit": "300", "clients": "4", "partition": "iid",
    "test": "0.3", "min_samples": "3", "features": "unit", "skip_broken": None, "seed": "1", "rounds": "1",
    "participation": "0.5", "runtime": "local", "alone": None, "eval_every": "2",
    "secure": None,
}  # fmt: skip


def options_of(name: str) -> dict[str, Any]:
    command: Any = typer.main.get_command(cli.app)
    return {each.name: each for each in command.commands[name].params}


def test_every_setting_is_an_option_of_run_with_its_help_and_no_default_of_its_own() -> None:
    options = options_of("run")
    declared = settings.options()
    assert list(declared) == [field.name for field in dataclasses.fields(Settings)]
    assert list(options)[: len(declared)] == list(declared)
    for name, each in declared.items():
        assert options[name].opts == [settings.option_name(name)]
        assert options[name].help == each.help
        assert options[name].default is None
    assert options["alone"].secondary_opts == ["--no-alone"]


def test_compare_takes_the_settings_that_its_runs_share() -> None:
    options, declared = options_of("compare"), settings.options()
    shared = [name for name in options if name in declared]
    several = ("clients", "partition", "features")  # of which a comparison takes lists
    assert [name for name in shared if name not in several] == list(cli.compare.COMMON)
    assert set(several) <= set(shared)
    assert not {"method", "seed", "runtime", "alone"} & set(options)


@pytest.mark.parametrize("name", [name for name in OTHER if name not in ("skip_broken", "runtime")])
def test_an_option_changes_its_setting(command: Command, tmp_path: Any, name: str) -> None:
    if name == "secure":
        pytest.importorskip("cryptography", reason="pip install 'fedsolve[secure]'")
    value, option = OTHER[name], settings.option_name(name)
    words = [option] if value is None else [option, value]
    base = [] if name == "clients" else ["--clients", "5"]
    done = command("run", "--quiet", "--out", "out", *base, *words)
    assert (done.code, done.err) == (0, "")
    stored = figures(tmp_path / "out")["settings"]
    expected = True if value is None else settings.options()[name].kind.read(value if name != "set" else [value])
    if name == "set":
        assert stored["set"]["shrink"] == 2.0
    else:
        assert str(stored[name]) == str(expected)


def test_what_a_file_may_hold_is_what_the_kind_says() -> None:
    good = {"a text": "x", "a number": 0.5, "true or false": True, "a number or a text": "x", "an integer": 1}
    for name, option in settings.options().items():
        if option.kind is not settings.TABLE:
            assert getattr(Settings.of({name: good[option.kind.words]}, "c.toml"), name) == good[option.kind.words]
        if option.kind is not settings.WHOLE:
            with pytest.raises(FedsolveError, match=f"setting '{name}' in c.toml must be {option.kind.words}"):
                Settings.of({name: [1]}, "c.toml")
    with pytest.raises(FedsolveError, match=r"setting in c\.toml: 'clinets'; did you mean 'clients'"):
        Settings.of({"clinets": 3}, "c.toml")


def test_the_declarations_load_no_numpy() -> None:
    code = "import fedsolve.study.settings, sys; print('numpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
