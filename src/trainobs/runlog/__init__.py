"""The run log: its schema, its writer, and its reader."""
