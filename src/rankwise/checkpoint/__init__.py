"""Checkpoints: what a run needs to continue, on any number of devices and in any mode."""
