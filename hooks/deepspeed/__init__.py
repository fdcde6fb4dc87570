"""Hooks on DeepSpeed: engines, ZeRO's flushes and fetches, its communication layer."""
