"""Rules of what is communicated, by whom and how fast."""
