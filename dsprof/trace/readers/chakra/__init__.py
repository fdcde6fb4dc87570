"""Graphs in Chakra's schema: protobuf, and torch's execution traces in JSON."""
