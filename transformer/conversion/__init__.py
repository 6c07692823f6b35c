"""Models of Hugging Face transformers in and out: how tables are read, and one family a file."""
