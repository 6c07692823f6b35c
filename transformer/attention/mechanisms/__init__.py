"""What may stand in place of softmax attention; each is a part of a config."""
