"""From command lines and strings in a config to objects."""
