"""Batches of loaders: what they took, which steps got them, and what is not known of them."""
