"""Readers of images for predict.py and eval.py."""
