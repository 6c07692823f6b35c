"""Tasks of runs on images."""
