"""`rankwise doctor`: whether this machine, or this cluster, is fit to train on, and if not, what to change."""
