"""Trials by thousands: what is done to runs to break them, and how many broke."""
