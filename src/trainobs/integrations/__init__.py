"""One file per training framework."""
