"""A window of torch.profiler with what `dsprof capture`, a signal or an alarm keeps; opt-in."""
