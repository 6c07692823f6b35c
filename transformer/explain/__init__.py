"""Attention weights and the importance of heads, as numbers and as pictures."""
