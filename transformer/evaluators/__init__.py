"""Evaluators of runs, and their metrics."""
