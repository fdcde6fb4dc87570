"""Hooks on torch's own trainers: DDP, FSDP, DTensor, pipelining, plain loops."""
