"""What a run may cost: limits from a file, and which of them a diagnosis breaks."""
