"""KeyedJaggedTensors: found in batches, and split into hot and cold lookups."""
