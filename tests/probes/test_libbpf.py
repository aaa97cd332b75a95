"""How libbpf is called."""

from __future__ import annotations

import ctypes
import signal
from itertools import filterfalse
from types import SimpleNamespace

import pytest

from trainobs.probes.libbpf import load_object


def test_a_handler_that_raises_as_signals_are_blocked_leaves_none_blocked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The thread would be deaf to Ctrl-C, and so would the workers that it starts."""

    def interrupt(*_: object) -> None:
        raise InterruptedError

    # Python looks for handlers only after the call: these are no functions of its own.
    come = filterfalse(ctypes.CDLL(None)["raise"], [signal.SIGUSR1])
    monkeypatch.setattr(signal, "valid_signals", lambda: come)
    before = signal.signal(signal.SIGUSR1, interrupt)
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    try:
        with pytest.raises(InterruptedError):
            load_object(SimpleNamespace(bpf_object__load=lambda _: 0), None)  # type: ignore[arg-type]
        assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == blocked
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        signal.signal(signal.SIGUSR1, before)
