"""Config: defaults < YAML file < DSPROF_* variables < enable(**options)."""
