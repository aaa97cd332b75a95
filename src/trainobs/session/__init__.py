"""One run: its settings, its parts wired together, its observer thread."""
