"""What several rules show as evidence, and say of it."""
