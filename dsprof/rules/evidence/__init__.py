"""Evidence that several rules share, and its words."""
