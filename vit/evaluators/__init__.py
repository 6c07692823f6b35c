"""Evaluators of runs on images."""
