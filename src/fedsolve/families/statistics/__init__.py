"""What statistical models share: distributions, sums of a Newton step at a site, steps on the server, and random effects.

Everything a site sends here is a sum over its samples, so that the coefficients are those of the pooled table.
"""
