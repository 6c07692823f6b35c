"""Losses and tasks, one objective a file."""
