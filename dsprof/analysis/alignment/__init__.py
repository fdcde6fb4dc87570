"""What makes ranks comparable: one clock, and the same collective on each of them."""
