"""Step clock and collector: from marks to records."""
