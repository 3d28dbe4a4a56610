"""What somebody does with a method: run an experiment, compare several, predict with a model, hand it to others."""
