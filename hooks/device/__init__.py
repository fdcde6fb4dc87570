"""Hooks on an accelerator: its streams, its clock, its memory."""
