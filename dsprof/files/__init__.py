"""Files that are given to us by name, or that we write."""
