"""Noises over rows of token ids, from which models learn to restore the text."""
