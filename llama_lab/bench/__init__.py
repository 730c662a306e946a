"""The speed of a config on this machine, and what limits it."""
