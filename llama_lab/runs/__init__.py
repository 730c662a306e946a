"""Everything around a training: command line, rules, records, checkpoints, progress."""
