"""Fixed maps from raw inputs to features: the same for everybody, or there is nothing to add up."""
