"""Rules of memory, of devices and hosts."""
