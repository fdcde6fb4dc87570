"""Facts from the trace of one rank."""
