"""What rules say, and how it is worded: the low layer that all reports share."""
