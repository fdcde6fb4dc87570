"""Facts about the whole run, from merged aggregates."""
