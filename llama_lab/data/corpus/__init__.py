"""Text from outside: which files, how each is read, where the text is split."""
