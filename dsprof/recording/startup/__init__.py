"""The folder that `dsprof run` puts on PYTHONPATH where torch loads no plugins."""
