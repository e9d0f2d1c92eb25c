"""A training on a Slurm cluster: a batch script in which srun starts one `rankwise run` a machine."""
