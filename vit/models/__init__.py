"""Image models, one architecture a file."""
