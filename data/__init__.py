"""From a name or a path to batches: sources, tokenizers, packing and pipeline of text, and images. Needs no jax."""
