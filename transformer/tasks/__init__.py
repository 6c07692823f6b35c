"""Losses, and what runs learn: one objective a file."""
