"""The durable record of a closed-form federation: who is in, the sum of their statistics, and what happened."""
