"""The embedding tables of a run, and the lookups in them."""
