"""Keeps steps on request in a recording without end: by a command, a signal or an alarm."""
