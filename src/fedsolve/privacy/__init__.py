"""What leaves a site, what others could learn from it, and what keeps that from them.

Sums that nobody sees the parts of, noise with its account, reports of what shows, and a site's rules: functions of
plain values for both sides. How messages travel is the affair of `fedsolve.runtime`.
"""
