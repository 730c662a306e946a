"""What surrounds a training: its command line, rules, records, checkpoints and progress."""
