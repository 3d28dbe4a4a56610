"""The command line: parses and prints. Each command is one call of a library function; one file per command or group.

Nothing heavy is imported before a command needs it, so that `--help` answers at once.
"""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from fedsolve.cli import deploy, ledger
from fedsolve.cli.compare import compare_command
from fedsolve.cli.disclose import disclose_command
from fedsolve.cli.export import export_command
from fedsolve.cli.help import with_plain_help
from fedsolve.cli.methods import methods_command
from fedsolve.cli.predict import predict_command
from fedsolve.cli.report import report_command
from fedsolve.cli.reproduce import reproduce_command
from fedsolve.cli.run import run_command
from fedsolve.cli.summary import summary_command
from fedsolve.errors import FedsolveError

app = typer.Typer(
    name="fedsolve",
    help="Personalised federated learning that solves instead of descending: one round, exact, whatever the split.",
    epilog="Start with: fedsolve run",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def main() -> None:
    """Run the command line; a user's mistake is one sentence and exit code 2."""
    try:
        app()
    except FedsolveError as error:
        print(f"fedsolve: {error}", file=sys.stderr)  # noqa: T201
        sys.exit(2)
    except OSError as error:
        where = f": {error.filename}" if error.filename else ""
        print(f"fedsolve: {error.strerror or error}{where}", file=sys.stderr)  # noqa: T201
        sys.exit(2)
    except SystemExit as stop:
        if stop.code in (130, 143):  # typer turns Ctrl-C into this, without a word; SIGTERM to `deploy run`
            what = " ".join(getattr(stop, "__notes__", [])) or "nothing was written"
            print(f"fedsolve: stopped; {what}", file=sys.stderr)  # noqa: T201
        raise


def _version(asked: bool) -> None:
    if asked:
        from fedsolve import __version__

        typer.echo(f"fedsolve {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


app.command("run")(run_command)
app.command("methods")(methods_command)
app.command("summary")(summary_command)
app.command("disclose")(disclose_command)
app.command("predict")(predict_command)
app.command("compare")(compare_command)
app.command("report")(report_command)
app.command("reproduce")(reproduce_command)
app.command("export")(export_command)
app.add_typer(deploy.app, name="deploy")
app.add_typer(ledger.app)
with_plain_help(app)
