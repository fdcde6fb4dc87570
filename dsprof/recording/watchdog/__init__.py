"""Notices, in the training process, that training does not go on, and says why."""
