"""The parts of a diagnosis: what each part of the page shows."""
