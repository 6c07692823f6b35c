"""Pictures of what models of images look at."""
