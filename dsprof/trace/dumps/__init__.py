"""Dumps: one moment, as a rank or a tool that looked at it wrote it down."""
