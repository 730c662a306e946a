"""Continuations of every prompt of a file, by Lightning's trainer."""
