"""Attention: masks, kernels and the multi-head module."""

from transformer.attention import relative  # noqa: F401  so that a config finds its encodings by name
