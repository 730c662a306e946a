"""The network: a decoder-only Transformer whose every part can be exchanged."""
