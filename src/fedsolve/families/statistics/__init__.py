"""What statistical models share: distributions, the sums of a site, steps on the server, random effects, summaries.

Everything a site sends here is a sum over its samples, so that the coefficients are those of the pooled table.
"""
