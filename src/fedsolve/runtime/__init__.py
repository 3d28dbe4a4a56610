"""The round loop, and the transports below it."""
