"""Complete training scripts: run them by name, copy them, change them."""
