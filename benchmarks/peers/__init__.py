"""A training step of llama-lab beside the same step of other trainers' models."""
