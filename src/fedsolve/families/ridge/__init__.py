"""What closed-form methods share: the linear model and its statistics, and choices by leave-one-out.

Everything here is a function of sums of F'F and F'Y, or of one client's own rows.
"""
