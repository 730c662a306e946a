"""Rotary position embedding: the rotation, and how its frequencies are scaled."""
