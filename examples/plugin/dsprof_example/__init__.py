"""What this package adds to dsprof; its entry points are in pyproject.toml."""
