"""From traces to the facts that rules judge."""
