"""Batches whose lookups are all hot, and others."""
