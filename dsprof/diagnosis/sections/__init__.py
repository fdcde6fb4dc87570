"""The sections of a diagnosis, each from the aggregates that hold its facts."""
