"""Training: the LightningModule, what is recorded of a run, and the command line for Lightning."""
