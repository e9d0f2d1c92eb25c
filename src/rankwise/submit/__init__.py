"""`rankwise submit`: a training as a job of a cluster, in files that a person can read."""
