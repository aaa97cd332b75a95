"""`trainobs-probed`: probes for processes that may not load any."""
