"""The layers of which every Transformer here is composed."""
