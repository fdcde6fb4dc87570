"""Counters of a device's memory, by the names that `MemorySample.device` has for them."""

ALLOCATED = "allocated_bytes.all.current"
PEAK_ALLOCATED = "allocated_bytes.all.peak"
RESERVED = "reserved_bytes.all.current"
PEAK_RESERVED = "reserved_bytes.all.peak"
STUCK = "inactive_split_bytes.all.current"
RETRIES = "num_alloc_retries"
FREED = "num_device_free"
"""As torch.cuda.memory_stats() calls them."""

DEVICE_TOTAL = "device_total_bytes"
"""Added to torch's counters: what the device has, whoever uses it."""
