"""Hardware of a run: which accelerators, which precision, which peak."""
