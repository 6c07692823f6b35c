"""What predict.py makes of a line."""
