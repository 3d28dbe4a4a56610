"""The durable record of a closed-form federation: who is in, the sum of their statistics, and what happened.

`store` has the operations on it, `terms` what all sides agree on, `site` what a site does with an invitation.
"""
