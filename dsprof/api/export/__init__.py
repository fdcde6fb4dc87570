"""A run in the formats of other programs: timelines of all ranks on one clock, and tables."""
