"""`rankwise report`: one page of a run, or of several side by side, made from what they logged and nothing else."""
