"""Pictures of the attention of image models."""
