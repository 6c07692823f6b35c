"""What is measured of a run on images."""
