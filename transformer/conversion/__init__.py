"""Converts models of Hugging Face transformers in both directions: tables, and one family a file."""
