"""One architecture of images a file."""
