"""What methods that descend on networks share: settings, networks as named arrays, the one training loop, averages."""
