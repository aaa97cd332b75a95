"""Step clock and assembler: from marks to records."""
