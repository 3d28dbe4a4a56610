"""`python -m fedsolve`."""

from fedsolve.cli import main

main()
