"""Text in its forms: documents, pairs, stories, examples for fine-tuning; from a source to batches."""
