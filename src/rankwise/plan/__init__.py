"""`rankwise plan`: step time and memory of a training on devices that are not here, from trials on one that is."""
