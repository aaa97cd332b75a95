"""The fast path of a step, in C where that is built, or in Python.

Python cannot be told at import time what to use but by its environment: `TRAINOBS_PURE_PYTHON=1`
has it use Python. A build without a compiler, PyPy and builds of CPython without the interpreter's
lock use it anyway, and so does a checkout whose C was built from other sources.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from trainobs.core.compiled import is_stale, is_whole, tell_stale_native
from trainobs.core.switch import PURE, is_on
from trainobs.steps import fast_path_python

_PATH = Path(__file__).with_name("_fast_path.abi3.so")
_is_stale = not is_on(PURE) and is_whole(_PATH) and is_stale(_PATH, "native")


def _in_c() -> ModuleType | None:
    if is_on(PURE) or not is_whole(_PATH) or _is_stale:
        return None
    try:
        return import_module("trainobs.steps._fast_path")
    except ImportError:  # not for this interpreter
        return None


_native = _in_c()

LANGUAGE = "Python" if _native is None else "C"
"""What does what nearly every step does."""


def tell_if_stale() -> None:
    """As a run begins, say why it is Python where it would be C; an import says nothing."""
    if _is_stale:
        tell_stale_native()


if TYPE_CHECKING or _native is None:
    CallbackContext = fast_path_python.CallbackContext
    Marker = fast_path_python.Marker
    PassTracker = fast_path_python.PassTracker
    FetchListener = fast_path_python.FetchListener
    TaskMarks = fast_path_python.TaskMarks
    untracked = fast_path_python.untracked
    watched_next = fast_path_python.watched_next
else:
    CallbackContext, Marker = _native.CallbackContext, _native.Marker
    PassTracker, FetchListener = _native.PassTracker, _native.FetchListener
    TaskMarks, watched_next = _native.TaskMarks, _native.watched_next
    untracked = _native.untracked
