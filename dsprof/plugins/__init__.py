"""Parts that are found, not listed: those of dsprof by folder, those of plugins by entry point."""
