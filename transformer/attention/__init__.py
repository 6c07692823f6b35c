"""Attention: masks, kernels and the multi-head module."""

from transformer.attention.positions import relative, rotary  # noqa: F401  so that a config finds its encodings by name
