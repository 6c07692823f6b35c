"""Models of images of Hugging Face transformers, in and out."""
