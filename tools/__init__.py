"""Tools of the developers, run from the root of the project; no part of the package."""
