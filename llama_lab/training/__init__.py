"""What learns: the LightningModule, its optimisers, schedules, averages and compilation."""
