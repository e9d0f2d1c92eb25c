"""A training on a running Ray cluster: Ray Train places a worker on each node, which runs `rankwise run` there."""
