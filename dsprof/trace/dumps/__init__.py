"""What a rank, or a tool that looked at it, wrote down of one moment."""
