"""A recording without end: within its budget old details make room, and sums of all steps stay."""
