"""Rules of how steps change within a run."""
