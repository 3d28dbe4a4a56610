"""The Flower app of a fedsolve deployment; all its code is in the library."""
