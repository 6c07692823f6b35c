"""Attention and the Transformers of text: parts, models, losses, tasks, evaluators, decoding. Needs jax and flax alone."""
