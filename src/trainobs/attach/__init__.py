"""A training process observed from outside: it imports nothing of ours, and is not restarted."""
