"""Rules of what communication could hide behind, and of what keeps it from hiding."""
