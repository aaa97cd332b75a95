"""The ranks of a job side by side, and who makes the others wait."""
