"""What leaves a site, and what somebody could learn from it. Sums with noise and its account, reports, and rules."""
