"""Text in its forms: documents, stories, examples for fine-tuning; from a source to batches."""
