"""Looks at a model and at this machine from outside; the network knows nothing of it."""
