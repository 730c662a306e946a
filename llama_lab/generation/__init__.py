"""Text from a trained decoder: sampling, and generation with a cache."""
