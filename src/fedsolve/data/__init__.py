"""Data as clients hold them: samples, the ways to split a table over clients, and where tables come from."""
