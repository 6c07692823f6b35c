"""Position encodings; each is a part of a config."""
