"""Exceptions that handlers of signals raise: no faults of the code that they interrupt."""

from __future__ import annotations

import _thread
import functools
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from inspect import getattr_static
from types import CodeType, FrameType
from typing import Any


def let_signals_through() -> None:
    """Raise the exception that is being handled again if the handler of a signal raised it.

    Handlers run between any two instructions of the main thread, those of trainobs included. One of
    torch's raises when a worker is killed (torch/utils/data/_utils/signal_handling.py), others do
    on SIGALRM or SIGTERM: these exceptions are for the training.
    """
    error = sys.exc_info()[1]
    if error is not None and _signal_in(error) is not None:
        try:
            raise error
        finally:
            del error  # it knows this frame, and would be kept by it with all others


class Ending(ExitStack):
    """An ExitStack after which an exception that a callback raised still has its context.

    While an exception is handled, as where a training has failed, contextlib's takes that out of
    what a callback raises: the fault of the training would be in no traceback.
    """

    def __exit__(self, *exception: Any) -> bool:
        """Call all callbacks."""
        handled = sys.exc_info()[1]
        try:
            return bool(super().__exit__(*exception))
        except BaseException as error:
            first, before = _contexts(error)[-1], _contexts(handled)
            if handled is not None and first not in before:
                first.__context__ = handled
            raise
        finally:
            del handled


def _contexts(error: BaseException | None) -> list[BaseException]:
    """An exception, what was handled as it was raised, and so on."""
    found: list[BaseException] = []
    while error is not None and error not in found:
        found.append(error)
        error = error.__context__
    return found


def pass_on(error: BaseException, frame: FrameType) -> None:
    """Have a signal handled again whose handler raised an exception that has no way out of here.

    For code that the main thread was made to run in the middle of something else.

    Args:
        error: the exception; if no handler raised it, nothing happens.
        frame: of the main thread, the outermost that is not part of what goes on after it.
    """
    # The handler of Python itself is in C, and in no traceback.
    by_python = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    interrupted = by_python and isinstance(error, KeyboardInterrupt)
    number = signal.SIGINT if interrupted else _signal_in(error)
    if number is None:
        return

    def wait() -> None:
        while _runs(frame):
            time.sleep(0.001)
        _thread.interrupt_main(signal.Signals(number))

    threading.Thread(target=wait, name="trainobs", daemon=True).start()


def stay_interrupted() -> None:
    """Have the process end by SIGINT after a Ctrl-C that nobody caught, as it does unobserved.

    CPython forgets that Ctrl-C as soon as a string is executed, as what is imported at the end of a
    run does, and notes any that ends one (`run_eval_code_obj` in Python/pythonrun.c). At a prompt,
    also one that a program offers, the last Ctrl-C may be long ago.
    """
    if getattr(sys, "last_type", None) is not KeyboardInterrupt or hasattr(sys, "ps1"):
        return
    where = getattr(sys, "last_traceback", None)
    if where is not None and where.tb_frame.f_back is None:  # the program's own outermost frame
        with suppress(KeyboardInterrupt):
            exec("raise KeyboardInterrupt")


def _runs(frame: FrameType) -> bool:
    """Whether the main thread is in a frame."""
    at = sys._current_frames().get(threading.main_thread().ident or 0)
    while at is not None and at is not frame:
        at = at.f_back
    return at is not None


def _signal_in(error: BaseException) -> int | None:
    """The signal whose handler is in the traceback of an exception."""
    at = error.__traceback__
    numbers = dict(_handlers()) if at is not None else {}
    while at is not None:
        if at.tb_frame.f_code in numbers:
            return numbers[at.tb_frame.f_code]
        at = at.tb_next
    return None


def _handlers() -> Iterator[tuple[CodeType, int]]:
    """The code of each Python function that handles signals now, and the signal."""
    for number in signal.valid_signals():
        handler = signal.getsignal(number)
        while isinstance(handler, functools.partial):
            handler = handler.func
        for function in (handler, getattr_static(type(handler), "__call__", None)):
            code = getattr(getattr(function, "__func__", function), "__code__", None)
            if isinstance(code, CodeType):
                yield code, number
