"""What programs get of a run: rows by `dsprof.load`, a recording by `dsprof.record`."""
