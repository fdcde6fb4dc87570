"""Hooks on what is really sent: torch's c10d operations and their completion."""
