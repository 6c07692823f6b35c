"""Images: from a source to batches."""
