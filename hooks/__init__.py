"""Hooks: what watches torch and DeepSpeed. One file a library; `registry.py` lists them."""
