"""The part that learns: LightningModule, optimisers, schedules, averages, compilation."""
