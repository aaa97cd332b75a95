"""From access counts or a sample of the data to a profile."""
