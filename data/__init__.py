"""Turns a name or a path into batches: sources, tokenizers, text packing, the input pipeline, images. Needs no JAX."""
