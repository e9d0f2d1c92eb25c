"""`rankwise verify`: the same training in several layouts, compared, and the cause named where they differ."""
