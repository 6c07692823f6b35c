"""What runs on images learn."""
