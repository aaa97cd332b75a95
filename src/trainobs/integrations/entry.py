"""The text that another interpreter runs for `trainobs attach --inside` (`attach/inside.py`).

It runs there between two instructions of the main thread, in a namespace of its own. Nothing of
trainobs is imported yet, and may not be there. Nothing may be printed, or raised: that would be in
the output of the training.
"""

import json
import socket
import sys
from contextlib import suppress
from typing import Any


def enter(place: str, request: dict[str, Any], frame: Any) -> None:
    """Begin to observe this process.

    Args:
        place: address of a socket of who has asked for it.
        request: see `integrations/inside.py`.
        frame: the last one that is not the training's.
    """
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        connection.connect(place)
    except OSError:
        connection.close()
        return  # nobody waits for this any more
    importing = [name for name, module in list(sys.modules.items()) if _begins(module)]
    if importing:  # as torch may be: half of it is not there yet
        _tell(connection, {"what": "later", "found": f"did not end to import {importing[0]}"})
        return
    try:
        from trainobs.integrations.inside import begin
    except BaseException as error:
        found = f"{type(error).__name__}: {error}"[:1000]
        _tell(connection, {"what": "missing", "found": found, "python": sys.executable})
        with suppress(ImportError):
            from trainobs.core.signals import pass_on

            pass_on(error, frame)
    else:
        begin(connection, frame, request)


def _begins(module: Any) -> bool:
    """Whether a module is being imported; without asking the module, which may be anything."""
    with suppress(TypeError):
        return getattr(vars(module).get("__spec__"), "_initializing", False) is True
    return False


def _tell(connection: socket.socket, what: dict[str, str]) -> None:
    with suppress(OSError):
        connection.send(json.dumps(what).encode(), socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
    connection.close()
