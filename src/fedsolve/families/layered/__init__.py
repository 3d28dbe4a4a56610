"""What methods share that train networks layer by layer: descriptions, shapes and forward passes, sums of a layer."""
