"""The names of memory counters in `MemorySample.device`."""

ALLOCATED = "allocated_bytes.all.current"
PEAK_ALLOCATED = "allocated_bytes.all.peak"
RESERVED = "reserved_bytes.all.current"
PEAK_RESERVED = "reserved_bytes.all.peak"
STUCK = "inactive_split_bytes.all.current"
RETRIES = "num_alloc_retries"
FREED = "num_device_free"
"""As torch.cuda.memory_stats() calls them."""

DEVICE_TOTAL = "device_total_bytes"
"""Added to torch's counters: the whole memory of the device."""
