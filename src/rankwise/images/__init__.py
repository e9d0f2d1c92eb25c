"""`rankwise image`: container images for training and for development, from one template and one table of versions."""
