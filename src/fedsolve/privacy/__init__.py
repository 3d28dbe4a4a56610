"""What keeps a client's part to itself: sums that nobody sees the parts of, with their arithmetic, keys and rules.

Functions of plain values for both sides; how messages travel is the affair of `fedsolve.runtime`.
"""
