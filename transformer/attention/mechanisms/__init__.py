"""Alternatives to softmax attention; each is a part of a config."""
