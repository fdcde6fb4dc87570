"""Everything known about a run, in one value."""
