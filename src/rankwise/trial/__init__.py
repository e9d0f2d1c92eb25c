"""A trial: a training that ends after some steps, and leaves what each rank measured of them."""
