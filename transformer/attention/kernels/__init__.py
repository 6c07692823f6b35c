"""What computes attention: by all scores at once, by blocks, by the fused kernels of accelerators."""
