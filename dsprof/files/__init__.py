"""Files: those named to us, those that we write, and the modules of dsprof in their folders."""
