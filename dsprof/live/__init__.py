"""A run on a screen: while it lasts, in a terminal or for Prometheus, and as a local web page."""
