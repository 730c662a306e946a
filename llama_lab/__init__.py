"""Train, resume, sample and compare small decoder-only language models, part by part."""

__version__ = "0.1.0"
