"""Rules of how far a record can be trusted."""
