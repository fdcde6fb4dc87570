"""What is known of a run, in one value."""
