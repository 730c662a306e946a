"""The commands that are no Trainer verb, one thin file each."""
