"""The torch side of embedding look-ups: finds the tables of a model, counts what they serve."""
