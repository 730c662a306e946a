"""Weights that are divided between processes: sharding, tensor parallelism, and their files."""
