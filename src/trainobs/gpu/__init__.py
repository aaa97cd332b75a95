"""The GPU of this process, read through NVML by one process a node."""
