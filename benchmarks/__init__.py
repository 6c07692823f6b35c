"""Measured speed and memory: each module prints one JSON line a case."""
