"""The profile: which rows are hot, and what they are expected to serve."""
