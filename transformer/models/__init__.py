"""One architecture a file: modules only."""
