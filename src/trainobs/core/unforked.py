"""What no other thread may fork in the middle of: an import in the observer's thread.

A forked child has the forking thread alone. The lock of a module that another thread was importing
stays held in it for ever, and a worker that imports the same module would wait without end. So who
forks waits for the end of such an import, which takes a tenth of a second, once. A library that is
half loaded would be so in the child for ever.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial

PATIENCE_S = 2.0
"""How long a fork waits at most: who forks may hold a lock that the import waits for."""

_importing = threading.Lock()
"""Not an RLock, which only its owner may release: who forks without it would be told of that."""

_loading = threading.Lock()
"""A load needs nothing that who forks may hold, so that the fork waits for its end."""

_owner = 0
_registered = False


@contextmanager
def unforked() -> Iterator[None]:
    """Let no other thread fork meanwhile, as far as its patience goes. May be nested."""
    global _owner
    _register()
    if _owner == threading.get_ident():
        yield
        return
    _importing.acquire()
    _owner = threading.get_ident()
    try:
        yield
    finally:
        _owner = 0
        with suppress(RuntimeError):  # who forked has waited long enough, and has released it
            _importing.release()


@contextmanager
def unforked_load() -> Iterator[None]:
    """Let no other thread fork while a library is loaded, however long that takes."""
    _register()
    with _loading:
        yield


def _register() -> None:
    """Handlers without Python code: it would swallow what a signal's handler raises in it."""
    global _registered
    if not _registered:
        _registered = True
        os.register_at_fork(
            before=partial(_importing.acquire, timeout=PATIENCE_S),
            after_in_parent=_importing.release,
            after_in_child=_importing._at_fork_reinit,  # type: ignore[attr-defined]
        )
        os.register_at_fork(
            before=_loading.acquire,
            after_in_parent=_loading.release,
            after_in_child=_loading._at_fork_reinit,  # type: ignore[attr-defined]
        )
