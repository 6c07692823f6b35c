"""Where texts, pairs and images come from."""
