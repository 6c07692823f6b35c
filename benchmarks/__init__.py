"""Measurements of speed and memory: each module prints one JSON line per case."""
