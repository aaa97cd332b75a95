"""What a run read, wrote, sent and received, and what of it is not known."""
