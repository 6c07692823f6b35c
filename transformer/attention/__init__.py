"""Attention: masks, kernels and the multi-head module."""
