"""All that runs in the training process, hooks apart."""
