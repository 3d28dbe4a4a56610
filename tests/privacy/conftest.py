"""The command line without a new process, for all tests here."""

from tests.runtime.test_cli import command  # noqa: F401
