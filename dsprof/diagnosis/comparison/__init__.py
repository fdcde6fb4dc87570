"""Two runs side by side: from two diagnoses to what changed between them."""
