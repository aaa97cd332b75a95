"""The torch side of embedding lookups: finds the tables of a model, counts what they serve."""
