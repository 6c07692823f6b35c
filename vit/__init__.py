"""Vision and image-text models, composed from transformer/, with their tasks and evaluators. Needs jax and flax alone."""
