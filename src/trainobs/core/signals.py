"""Exceptions that handlers of signals raise: no faults of the code that they interrupt."""

from __future__ import annotations

import functools
import signal
import sys
from collections.abc import Iterator
from inspect import getattr_static
from types import CodeType


def let_signals_through() -> None:
    """Raise the exception that is being handled again if the handler of a signal raised it.

    Handlers run between any two instructions of the main thread, those of trainobs included. One of
    torch's raises when a worker is killed (torch/utils/data/_utils/signal_handling.py), others do
    on SIGALRM or SIGTERM: these exceptions are for the training.
    """
    error = sys.exc_info()[1]
    at = error.__traceback__ if error else None
    codes = set(_handlers()) if at is not None else set()
    while error and at is not None:
        if at.tb_frame.f_code in codes:
            try:
                raise error
            finally:
                del error, at  # it knows this frame, and would be kept by it with all others
        at = at.tb_next


def _handlers() -> Iterator[CodeType]:
    """The code of the Python functions that handle signals now."""
    for number in signal.valid_signals():
        handler = signal.getsignal(number)
        while isinstance(handler, functools.partial):
            handler = handler.func
        for function in (handler, getattr_static(type(handler), "__call__", None)):
            code = getattr(getattr(function, "__func__", function), "__code__", None)
            if isinstance(code, CodeType):
                yield code
