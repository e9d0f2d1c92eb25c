"""From a data set to batches on a rank's device: order, slices, per-sample randomness, reading, placement."""
