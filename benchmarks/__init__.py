"""Benchmarks: ratios measured in one run. `make bench`, or `python -m benchmarks floor layers ...`."""
