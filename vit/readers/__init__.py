"""What predict.py and eval.py make of images."""
