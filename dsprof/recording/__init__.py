"""What happens in the training process between the hooks and the writer."""
