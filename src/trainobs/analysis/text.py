"""Numbers as people read them; what the report uses of `core.text`."""

from __future__ import annotations

from trainobs.core.text import bar, duration, percent, printable, quantity, size

__all__ = ["bar", "duration", "percent", "printable", "quantity", "size"]
