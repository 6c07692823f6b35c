"""Conversion of the image models of Hugging Face transformers."""
