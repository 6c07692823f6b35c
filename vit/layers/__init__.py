"""Parts of image models: windows, merging of patches, stages."""
