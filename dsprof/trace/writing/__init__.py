"""Writes a trace in the training process: the thread, its lines, and what it notes meanwhile."""
