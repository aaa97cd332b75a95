"""Progress bars that stand in the line that is written to next."""

from __future__ import annotations

import sys
from typing import Any, TextIO

from trainobs.core.signals import let_signals_through


def lines_below(stream: TextIO) -> int:
    """Line ends to write to a stream before a line, for it to stand below tqdm's open bars.

    tqdm leaves the cursor behind its bar, and of several behind the first. Nothing is imported for
    that: where tqdm is not, there is no bar of it.
    """
    module = sys.modules.get("tqdm.std")
    try:
        bars = list(module.tqdm._instances) if module else []  # those that are not closed
        return max((1 + abs(bar.pos) for bar in bars if _is_before(bar, stream)), default=0)
    except Exception:  # another version of tqdm, or a bar that begins or ends just now
        let_signals_through()
        return 0


def _is_before(bar: Any, stream: TextIO) -> bool:
    """Whether a bar is drawn on a stream, or on a terminal as that is; no widget of a notebook."""
    file = getattr(bar.fp, "_wrapped", bar.fp)
    if bar.disable or bar.gui or "notebook" in type(bar).__module__:
        return False
    return file is stream or (file.isatty() and stream.isatty())
