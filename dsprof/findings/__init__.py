"""Findings and their words: the low layer that all reports share."""
