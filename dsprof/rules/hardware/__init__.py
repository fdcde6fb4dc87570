"""What rules ask of hardware: which accelerators, which precision, which peak."""
