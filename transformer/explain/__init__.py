"""What heads look at and which of them matter, as numbers and as pictures."""
