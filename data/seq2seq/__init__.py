"""Texts that a model reads, with the texts that it is to write: pairs, text with noise, and several tasks as text."""
