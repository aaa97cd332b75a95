"""What can be said of a finished run; reads run logs only."""
