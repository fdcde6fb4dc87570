"""The trace: its format, writer and readers."""
