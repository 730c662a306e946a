"""What the commands that generate share: flags, prompts, and what is written."""
