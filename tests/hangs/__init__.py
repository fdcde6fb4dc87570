"""Real runs that hang or die in every way we know, and what the verdict on each must be."""
