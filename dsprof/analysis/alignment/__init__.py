"""Ranks made comparable: one clock, and the same collective on each of them."""
