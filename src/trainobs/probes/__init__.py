"""Load, attach and read the kernel side; say what this machine can do."""
