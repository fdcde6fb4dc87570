"""Budgets of a run: limits from a file, and which of them a diagnosis breaks."""
